//! Lists of tensors, for networks of other sizes.

/// Tensors in the order of layers, each with its shape; matrices are `[out, in]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorShapes(pub Vec<(String, Vec<usize>)>);

impl TensorShapes {
    /// Adds `path.weight`.
    pub(super) fn weight(&mut self, path: &str, shape: &[usize]) {
        self.0.push((format!("{path}.weight"), shape.to_vec()));
    }

    /// Adds `path.weight` and a bias with a value for each output.
    pub(super) fn layer(&mut self, path: &str, shape: &[usize]) {
        self.weight(path, shape);
        self.0.push((format!("{path}.bias"), shape[..1].to_vec()));
    }

    /// Adds `path.weight`, and a bias if `has_bias`.
    pub(super) fn linear(&mut self, path: &str, shape: [usize; 2], has_bias: bool) {
        if has_bias { self.layer(path, &shape) } else { self.weight(path, &shape) }
    }

    /// Adds the tensors of a batch norm.
    pub(super) fn batch_norm(&mut self, path: &str, width: usize) {
        self.layer(path, &[width]);
        for name in ["running_mean", "running_var"] {
            self.0.push((format!("{path}.{name}"), vec![width]));
        }
    }
}
