//! Builds networks of published architectures for tests.

#![allow(dead_code, unreachable_pub)]

use briquette_core::DType;
use briquette_graph::coupling::{coupling_groups, parameters_left};
use briquette_graph::op::{ConvSettings, ElementFunction, PoolWindow, Reduction};
use briquette_graph::{Graph, GraphBuilder, Headers, Primitive, ValueId};

/// Parameters, and parameters left at half.
pub fn halved(graph: &Graph) -> (usize, usize) {
    let groups = coupling_groups(graph, &graph.lower().unwrap()).unwrap();
    (graph.n_parameters(), parameters_left(graph, &groups, 0.5))
}

/// A share with two digits.
pub fn share((all, left): (usize, usize)) -> String {
    format!("{:.2}", left as f64 / all as f64)
}

/// A graph of tensors that no file has.
pub fn by_hand(build: impl FnOnce(&mut Net) -> ValueId) -> Graph {
    let headers = Headers::new(&[], None);
    let mut net = Net { to: GraphBuilder::new("test", &headers), n: 0 };
    let y = build(&mut net);
    net.to.finish(&[y])
}

/// Builds a network layer by layer, with names that count.
pub struct Net<'a> {
    pub to: GraphBuilder<'a>,
    n: usize,
}

impl Net<'_> {
    pub fn name(&mut self) -> String {
        self.n += 1;
        format!("n{}", self.n)
    }

    pub fn conv(
        &mut self,
        x: ValueId,
        [n_in, n_out]: [usize; 2],
        kernel: usize,
        stride: usize,
        groups: usize,
    ) -> ValueId {
        let name = self.name();
        self.to.declare(&format!("{name}.weight"), DType::F32, &[n_out, n_in / groups, kernel, kernel]);
        self.to.conv(&name, x, ConvSettings::square(stride, kernel / 2).with_groups(groups)).unwrap()
    }

    /// A convolution over patches that do not overlap.
    pub fn patches(&mut self, x: ValueId, [n_in, n_out]: [usize; 2], size: usize) -> ValueId {
        let name = self.name();
        self.to.declare(&format!("{name}.weight"), DType::F32, &[n_out, n_in, size, size]);
        self.to.declare(&format!("{name}.bias"), DType::F32, &[n_out]);
        self.to.conv(&name, x, ConvSettings::square(size, 0)).unwrap()
    }

    pub fn conv_with_bias(
        &mut self,
        x: ValueId,
        sizes: [usize; 2],
        kernel: usize,
        stride: usize,
        groups: usize,
    ) -> ValueId {
        let bias = format!("n{}.bias", self.n + 1);
        self.to.declare(&bias, DType::F32, &[sizes[1]]);
        self.conv(x, sizes, kernel, stride, groups)
    }

    pub fn linear(&mut self, x: ValueId, [n_in, n_out]: [usize; 2], has_bias: bool) -> ValueId {
        let name = self.name();
        self.to.declare(&format!("{name}.weight"), DType::F32, &[n_out, n_in]);
        if has_bias {
            self.to.declare(&format!("{name}.bias"), DType::F32, &[n_out]);
        }
        self.to.linear(&name, x).unwrap()
    }

    pub fn layer_norm(&mut self, x: ValueId, n: usize) -> ValueId {
        let name = self.name();
        for part in ["weight", "bias"] {
            self.to.declare(&format!("{name}.{part}"), DType::F32, &[n]);
        }
        self.to.layer_norm(&name, x, 1e-6).unwrap()
    }

    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        self.to.node("reshape", Primitive::Reshape(shape.to_vec()), &[x.into()])
    }

    pub fn transpose(&mut self, x: ValueId, permutation: &[usize]) -> ValueId {
        self.to.node("transpose", Primitive::Transpose(permutation.to_vec()), &[x.into()])
    }

    pub fn slice(&mut self, x: ValueId, axis: usize, start: usize, len: usize) -> ValueId {
        self.to.node("slice", Primitive::Slice { axis, start, len }, &[x.into()])
    }

    pub fn norm(&mut self, x: ValueId, n: usize) -> ValueId {
        let name = self.name();
        for part in ["weight", "bias", "running_mean", "running_var"] {
            self.to.declare(&format!("{name}.{part}"), DType::F32, &[n]);
        }
        self.to.batch_norm(&name, x, 1e-5).unwrap()
    }

    pub fn relu(&mut self, x: ValueId) -> ValueId {
        self.to.function("relu", ElementFunction::Relu, x)
    }

    /// A convolution, its batch norm and ReLU.
    pub fn cbr(&mut self, x: ValueId, sizes: [usize; 2], kernel: usize, stride: usize, groups: usize) -> ValueId {
        let x = self.conv(x, sizes, kernel, stride, groups);
        let x = self.norm(x, sizes[1]);
        self.relu(x)
    }

    pub fn pool(&mut self, x: ValueId, size: usize, stride: usize, padding: usize) -> ValueId {
        let window = PoolWindow::square(Reduction::Max, size, stride, padding);
        self.to.node("pool", Primitive::Pool(window), &[x.into()])
    }

    pub fn concat(&mut self, parts: &[ValueId]) -> ValueId {
        let parts: Vec<_> = parts.iter().map(|part| (*part).into()).collect();
        self.to.node("concat", Primitive::Concat { axis: 1 }, &parts)
    }

    pub fn classify(&mut self, x: ValueId, n: usize) -> ValueId {
        let x = self.to.node("avgpool", Primitive::AdaptivePool(vec![1, 1]), &[x.into()]);
        let x = self.to.node("flatten", Primitive::Reshape(vec![1, n]), &[x.into()]);
        self.to.declare("fc.weight", DType::F32, &[1000, n]);
        self.to.declare("fc.bias", DType::F32, &[1000]);
        self.to.linear("fc", x).unwrap()
    }
}
