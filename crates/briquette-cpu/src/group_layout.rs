//! The layout of inputs in groups with one scale, for 4-bit weights and int8 activations.

/// Bytes of a step of 4 inputs in a panel of 32 outputs.
pub(crate) const STEP_BYTES: usize = 64;

/// How the inputs of a row form groups with one scale, and groups form steps of 4 inputs.
///
/// Every group starts with a new step, so a group whose size is not a multiple of 4 is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct GroupLayout {
    pub(crate) n_in: usize,
    /// Inputs in a group; the last group may be shorter.
    pub(crate) group: usize,
}

impl GroupLayout {
    pub(crate) const fn n_groups(self) -> usize {
        self.n_in.div_ceil(self.group)
    }

    /// Returns the steps of a group of full size.
    pub(crate) const fn steps_per_group(self) -> usize {
        self.group.div_ceil(4)
    }

    pub(crate) const fn n_steps(self) -> usize {
        self.n_in / self.group * self.steps_per_group() + (self.n_in % self.group).div_ceil(4)
    }

    /// Returns the place of an input in a padded row.
    pub(crate) const fn place(self, col: usize) -> usize {
        col / self.group * self.steps_per_group() * 4 + col % self.group
    }
}
