//! Terminal colours, if enabled.

/// Adds colours to text, if enabled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    /// Whether colours are enabled.
    pub(super) color: bool,
}

impl Paint {
    /// Returns a name or a heading.
    pub(super) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// Returns less important text.
    pub(super) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// Returns the main figure of the report.
    pub(super) fn strong(self, text: &str) -> String {
        self.with("1;32", text)
    }

    /// Returns a warning.
    pub(super) fn warn(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() }
    }
}
