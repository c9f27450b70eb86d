//! Lists, names and casts the parameters of burn modules.
//!
//! - [`parameters()`]: paths, shapes, roles and output axes, from the [`Layer`] that each parameter belongs to
//! - [`Roles`]: roles of parameters that belong to no layer of burn
//! - [`NameMap`]: names and layouts of parameters in files
//! - [`Probe`]: statistics of layer inputs
//! - [`ToDType`]: casts of whole modules
//!
//! ```
//! # #[cfg(feature = "flex")] {
//! use briquette_nn::{Layer, parameters};
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
pub use gram::cross_product;
pub use host::{read_bools, read_f32, unreadable};
pub use layer::{Layer, NAMED_LAYERS};
pub use names::{Layout, NameMap};
pub use observed::{Observed, Observing, observable, observe, observe_some, show, show_patches};
pub use origin::is_of_burn;
pub use parameters::{Kind, Parameter, is_kept_turned, linear_shape, parameters};
pub use probe::{GROUP_PATCHES, PatchShape, Probe};
pub use quiet::Quiet;
pub use roles::{OwnLayer, Roles};
pub use trail::Trail;
