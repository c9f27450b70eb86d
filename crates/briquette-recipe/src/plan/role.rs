//! What a tensor is in its network, and which of its axes counts outputs.
//!
//! The role follows from the tensor's name, its shape, the tensors beside it under the same owner, and `config.json`. In this order:
//!
//! | what shows it | role | where |
//! |---|---|---|
//! | a rule of `[[model.roles]]` | as it says | [`roles`](self) |
//! | a type that is no weight | other | `roles.rs` |
//! | rank 0 or 1 | norm by its name or by what lies beside it, else bias | `roles.rs` |
//! | lengths beside directions, or directions beside lengths, of a weight norm | linear or conv; parameter | `weight_norm.rs` |
//! | the name of a bare parameter: `bias`, `cls_token`, `A_log`, `in_proj_weight`, ... | by the table | `names.rs` |
//! | experts in one tensor, routers | linear, a row for each output of each expert; parameter | `experts.rs` |
//! | all extents but one are 1 | parameter | `filters.rs` |
//! | rank 2, called `weight` | embedding or norm by its name, else linear; a bias beside it shows which axis counts outputs | `matrices.rs` |
//! | rank 3 to 5, called `weight` | conv; a bias, the next batch norm, the class in a TorchScript file or the name shows transposed ones | `filters.rs` |
//! | anything else | unknown: left alone, and named | |
//!
//! `briquette inspect` shows the role and its reason. `fixtures/roles` lists the tensors of many families as transformers names them,
//! and a test checks the role of every line.

mod conv1d;
mod experts;
mod filters;
mod matrices;
mod names;
mod neighbours;
mod roles;
pub(crate) mod weight_norm;

#[cfg(test)]
mod families;

pub use roles::RoleContext;
