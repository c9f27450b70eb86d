//! Tasks of models.

pub use briquette_graph::Task as ModelTask;
