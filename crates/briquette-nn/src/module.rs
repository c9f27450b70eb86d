//! What a burn module is made of.
//!
//! [`parameters()`] lists parameters with their paths and shapes, the [`Layer`] of burn's that each belongs to, and so what it is and which of its
//! axes counts outputs; [`Roles`] say it where nothing shows it. [`NameMap`] relates paths to the names and layouts of files. A [`Probe`] gathers
//! what goes into layers. [`ToDType`] casts whole modules.
//!
//! Non-goals: changing what a module computes, and files of weights.
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::module::{Layer, parameters};
//! use burn::nn::LinearConfig;
//! use burn::tensor::Device;
//!
//! let found = parameters(&LinearConfig::new(16, 4).init(&Device::flex()));
//! assert_eq!((found[0].path.as_str(), found[0].layer), ("weight", Some(Layer::Linear)));
//! assert_eq!(found[0].rows().n_rows, 4); // burn's Linear is [in, out]
//! # }
//! ```

mod dtype;
mod gram;
mod host;
mod layer;
mod names;
mod observed;
mod origin;
mod parameters;
mod probe;
mod quiet;
mod roles;
mod trail;
pub mod view;

pub use dtype::{LossScaler, ToDType};
pub use host::{read_bools, read_f32, unreadable};
pub use layer::Layer;
pub use names::{Layout, NameMap};
pub use observed::{Observed, Observing, observable, observe, observe_some, show, show_patches};
pub use origin::is_of_burn;
pub use parameters::{Kind, Parameter, is_kept_turned, linear_shape, parameters};
pub use probe::{PatchShape, Probe};
pub use quiet::Quiet;
pub use roles::{OwnLayer, Roles};
pub use trail::Trail;
