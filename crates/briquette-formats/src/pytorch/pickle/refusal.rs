//! Reasons for refusing a pickle.

/// The message for an invalid pickle.
pub(super) type Refusal = String;

/// Returns the message for a pickle that ends too early or has inconsistent opcodes.
pub(super) fn damaged() -> Refusal {
    "its pickle is damaged or cut short; save or download it again".into()
}
