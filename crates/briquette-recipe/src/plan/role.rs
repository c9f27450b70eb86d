//! Detects the role of each tensor and its output axis.
//!
//! If the family of a model is known, the graph of its network shows the use of each tensor. Otherwise, and for tensors that no
//! node uses, the role follows from the name and the shape of a tensor, from its neighbours under the same owner, and from
//! `config.json`. The first matching row applies:
//!
//! | evidence | role | module |
//! |---|---|---|
//! | a rule of `[[model.roles]]` | the role of the rule | [`roles`](self) |
//! | a type that is not a weight type | other | `roles.rs` |
//! | a node of the graph | by its position in the node | `graph.rs` |
//! | rank 0 or 1 | norm by its name or its neighbours, else bias | `roles.rs` |
//! | a pair of directions and lengths of a weight norm | linear or conv; parameter | `weight_norm.rs` |
//! | the name of a bare parameter: `bias`, `cls_token`, `A_log`, `in_proj_weight`, ... | by the table | `names.rs` |
//! | stacked experts, routers | linear, with a row for each output of each expert; parameter | `experts.rs` |
//! | all extents but one are 1 | parameter | `filters.rs` |
//! | rank 2, called `weight` | embedding or norm by its name, else linear; a bias shows the output axis | `matrices.rs` |
//! | rank 3 to 5, called `weight` | conv; transposed by its bias, the next batch norm, the class in a TorchScript file or its name | `filters.rs` |
//! | anything else | unknown: unchanged and reported | |
//!
//! `briquette inspect` shows the role and its reason. `fixtures/roles` lists the tensors of many families with
//! their transformers names, and a test checks the role of every line.

mod conv1d;
mod experts;
mod filters;
mod graph;
mod matrices;
mod names;
mod neighbours;
mod roles;
pub(crate) mod weight_norm;

#[cfg(test)]
mod families;

pub use roles::RoleContext;
