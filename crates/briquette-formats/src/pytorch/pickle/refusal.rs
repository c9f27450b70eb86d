//! Why a pickle is not read.

/// The message of a pickle that is not valid.
pub(super) type Refusal = String;

/// A pickle that ends too early, or whose opcodes do not fit each other.
pub(super) fn damaged() -> Refusal {
    "its pickle is damaged or cut short; save or download it again".into()
}
