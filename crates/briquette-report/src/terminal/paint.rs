//! Colours, where there may be any.

/// Puts colours around text, or nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    /// Whether there may be colours.
    pub(super) color: bool,
}

impl Paint {
    /// A name or a heading.
    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What one may skip.
    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// The one figure that the report is about.
    pub(super) fn strong(self, text: &str) -> String {
        self.with("1;32", text)
    }

    /// What one must not miss.
    pub(super) fn warn(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}
