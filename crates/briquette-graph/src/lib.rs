//! Networks as graphs of operations: what each tensor of a checkpoint is for.
//!
//! A [`Graph`] has nodes, named inputs and outputs, blocks that repeat, and the names and shapes of weights. It holds no weight values.
//! A family builds it from the headers of a checkpoint and its `config.json` ([`graph_of`]); any other network is built by hand
//! ([`GraphBuilder`]). [`Graph::lower`] checks the graph, expands composites such as attention to primitives, and infers all shapes.
//!
//! These follow from a graph:
//!
//! | question | function |
//! |---|---|
//! | What is each weight, and which axis counts its outputs? | [`roles`](roles::roles) |
//! | Which weights are shared, which embedding is also the head? | [`shared_weights`](ties::shared_weights), [`heads`](ties::heads) |
//! | Which linear layers have the same input? | [`siblings`](siblings::siblings) |
//! | What crosses the border of a block? | [`border`](blocks::border) |
//! | How many multiply-adds does each node need? | [`multiply_adds`](multiply_adds::multiply_adds) |
//! | Which channels, heads and experts must be removed together? | [`coupling_groups`](coupling::coupling_groups) |
//! | How does the network look without some of them? | [`Graph::without_units`] |
//! | Which blocks are equal? | [`sections`](fold::sections) |
//! | Which weights produce and consume these channels? | [`pairs`](pairs::pairs) |
//! | Which layers can absorb a batch norm, or the scale of an input? | [`batch_norms`](absorb::batch_norms), [`scales`](absorb::scales) |
//! | Which vector shifts the outputs of a layer? | [`mean_shifts`](absorb::mean_shifts) |
//! | Which activations need a grid for static int8? | [`fixed_values`](fixed_values::fixed_values) |
//!
//! ```
//! use briquette_core::DType;
//! use briquette_formats::TensorInfo;
//! use briquette_graph::coupling::{coupling_groups, parameters_left};
//! use briquette_graph::op::ElementFunction;
//! use briquette_graph::{GraphBuilder, Headers};
//!
//! let tensor = |name: &str, shape: &[usize]| TensorInfo::checked(name.into(), DType::F32, shape.to_vec());
//! let tensors = [tensor("up.weight", &[64, 16])?, tensor("up.bias", &[64])?, tensor("down.weight", &[16, 64])?];
//! let headers = Headers::new(&tensors, None);
//! let mut builder = GraphBuilder::new("mlp", &headers);
//! let x = builder.input("x", &[1, 16]);
//! let inner = builder.linear("up", x)?;
//! let inner = builder.function("relu", ElementFunction::Relu, inner);
//! let y = builder.linear("down", inner)?;
//! let graph = builder.finish(&[y]);
//!
//! let groups = coupling_groups(&graph, &graph.lower()?)?;
//! assert_eq!((groups.len(), groups[0].units.len()), (1, 64));
//! assert_eq!(parameters_left(&graph, &groups, 0.5), graph.n_parameters() / 2);
//! # Ok::<(), briquette_core::Error>(())
//! ```
//!
//! Non-goals: weight values, running a network, choosing what to remove.

#![forbid(unsafe_code)]

pub mod absorb;
pub mod blocks;
pub mod builder;
pub mod computed_inputs;
pub mod config;
pub mod coupling;
mod edit;
mod expand;
mod expansion;
pub mod families;
pub mod fixed_values;
pub mod fold;
pub mod graph;
mod graph_headers;
pub mod headers;
pub mod lower;
pub mod mixtures;
pub mod multiply_adds;
pub mod onnx;
pub mod op;
mod order;
pub mod pairs;
pub mod resize;
pub mod roles;
mod shapes;
pub mod shrink;
pub mod siblings;
pub mod ties;
pub mod to_onnx;
mod union_find;
mod unused;
pub mod words;

pub use builder::GraphBuilder;
pub use config::Config;
pub use expansion::PrimitiveStep;
pub use families::{
    ClassLogits, Extents, FAMILIES, Family, FreshWeights, ONNX_NETWORKS, Task, TensorShapes, family_of, graph_of,
    known_graph_of, text_classes,
};
pub use graph::{Block, Graph, GraphInput, InputSource, Node, NodeId, Operand, ValueId, Weight, WeightId};
pub use graph_headers::GraphHeaders;
pub use headers::Headers;
pub use lower::Lowered;
pub use op::{Composite, Op, Primitive};
