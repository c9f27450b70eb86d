//! Counts the memory of a module's weights by storage form.

use crate::Packed;
use crate::module::{Trail, parameters};
use crate::packed_weights::NAMES;
use burn::module::{Module, ModuleVisitor, Param, Reparameterization};
use burn::tensor::quantization::quantized_data_len;
use burn::tensor::{DType, Int, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Suffix of forms that are decoded for each use.
pub(crate) const AS_FLOATS: &str = "as floats";
/// Form of burn's quantized tensors.
const INT8_AS_FLOATS: &str = "int8 as floats";

/// The parameters stored in one form.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// Paths of the parameters, in module order.
    #[serde(skip)]
    pub paths: Vec<String>,
    /// Number of parameters.
    pub n_tensors: usize,
    /// Number of weights, including zeros.
    pub n_weights: usize,
    /// Bytes in memory.
    pub n_bytes: usize,
}

/// Returns the storage forms of a module's float parameters.
///
/// | form | computation |
/// |---|---|
/// | `int8`, `sparse int8`, `int4 by int8` | multiplied as integers |
/// | `int8 weight-only`, `int4` | dequantized in registers |
/// | tables | looked up |
/// | `f32` and other types | floats |
/// | names ending in `as floats` | decoded for each use; burn's own layers always do this |
pub fn held<M: Module>(module: &M) -> BTreeMap<String, Held> {
    let knows_codes = parameters(module).into_iter().filter(|parameter| parameter.runs_on_codes);
    let mut count = Count { knows_codes: knows_codes.map(|parameter| parameter.path).collect(), ..Count::default() };
    module.visit(&mut count);
    count.push_last();
    count.found
}

#[derive(Default)]
struct Count {
    trail: Trail,
    knows_codes: BTreeSet<String>,
    last: Option<(String, Held)>,
    found: BTreeMap<String, Held>,
}

impl Count {
    fn push_last(&mut self) {
        if let Some((name, held)) = self.last.take() {
            let sum = self.found.entry(name).or_default();
            sum.paths.extend(held.paths);
            sum.n_tensors += held.n_tensors;
            sum.n_weights += held.n_weights;
            sum.n_bytes += held.n_bytes;
        }
    }
}

impl ModuleVisitor for Count {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.trail.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.trail.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.trail.reparameterized().is_some() {
            return;
        }
        self.push_last();
        let n_weights = param.lazy_shape().num_elements();
        let dtype = if param.is_initialized() { param.base().dtype() } else { DType::F32 };
        let (n_bytes, name) = match dtype {
            // Loaded while other copies of the module share the codes: a quantized tensor with one scale per
            // block.
            DType::QFloat(scheme) => (quantized_data_len(&scheme, &param.lazy_shape()), INT8_AS_FLOATS.to_string()),
            _ => (n_weights * dtype.size(), dtype.name().to_string()),
        };
        self.last = Some((name, Held { paths: vec![self.trail.path()], n_tensors: 1, n_weights, n_bytes }));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let is_ours = self.trail.reparameterized().is_some_and(|(_, name, _)| name == Packed::NAME);
        if let (true, Some((name, held)), Ok(data)) = (is_ours, &mut self.last, param.val().try_into_data()) {
            let numbers: Vec<i64> = data.iter::<i64>().collect();
            if name == INT8_AS_FLOATS {
                return;
            }
            let form = NAMES.get(numbers[0] as usize).copied().unwrap_or_default();
            let is_used = held.paths.iter().all(|path| self.knows_codes.contains(path)) || form.ends_with(AS_FLOATS);
            *name = if is_used { form.to_string() } else { format!("{form} {AS_FLOATS}") };
            held.n_bytes = numbers[1] as usize;
        }
    }
}
