//! Units by index.

/// A unit of a group, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId {
    /// The index of the group.
    pub group: usize,
    /// The index of the unit in its group.
    pub unit: usize,
}

/// The units along one axis of a value: for each element its unit, or none if it cannot be removed.
pub type AxisUnits = Vec<Option<UnitId>>;
