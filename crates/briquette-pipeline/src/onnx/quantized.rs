//! int8 codes for linear layers and tables, with vectors that scale inputs.

use super::bytes::bytes_of;
use super::forms::is_transposed_in_memory;
use super::pack::{ByteSink, copy_columns, transpose_in_parts};
use super::weight_values::{CodeSource, WeightValues};
use briquette_core::encoded::ScaleType;
use briquette_core::{Affine, DType, Error, Grid, OutputAxis, Result, Rows};
use briquette_formats::input_stats::StatisticsFile;
use briquette_formats::{Checkpoint, TensorSource};
use briquette_graph::onnx::InputDims;
use briquette_graph::op::{Composite, Op};
use briquette_graph::siblings::siblings;
use briquette_graph::to_onnx::{LinearForm, TableForm, WeightBytes, WeightForms, with_factors};
use briquette_graph::{Graph, Weight, WeightId, known_graph_of};
use briquette_methods::quant::{input_scale, range};
use briquette_writer::RunOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// How linear layers get int8 codes with dynamic activations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DynamicInt8 {
    /// Input statistics, from which each layer gets a vector that multiplies its inputs. Without them, inputs are rounded as they are.
    pub statistics: Option<PathBuf>,
}

/// The number and the vector of a layer's inputs, or none.
type InputScale = Option<(usize, Arc<Vec<f32>>)>;

/// Layers and tables that get int8 codes.
pub(super) struct QuantizedLayers<'a> {
    weights: WeightValues<'a>,
    /// Weights that are stored `[in, out]`.
    turned: BTreeSet<String>,
    /// Weights of linear layers, with the vector of their inputs.
    layers: BTreeMap<String, InputScale>,
    /// Tables, and whether f16 holds their scales.
    tables: BTreeMap<String, bool>,
    /// The last quantized weight: its codes and scales are needed one after the other.
    last: Mutex<Option<(String, Arc<RowCodes>)>>,
}

/// int8 codes with a scale for each row.
struct RowCodes {
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl<'a> QuantizedLayers<'a> {
    /// Finds linear layers and tables, and chooses the vectors of layers that have statistics.
    pub(super) fn new(checkpoint: &'a Checkpoint, how: &DynamicInt8, options: &RunOptions) -> Result<Self> {
        let graph = with_factors(known_graph_of(checkpoint, &InputDims::default())?, checkpoint.tensors());
        let weights = WeightValues::of(checkpoint);
        let (mut layers, mut tables) = (linear_weights(&graph), table_weights(&graph));
        // An ONNX graph has computed matrices too.
        layers.retain(|name, _| weights.has(name));
        tables.retain(|name, _| weights.has(name));
        let turned = graph.weights.iter().filter(|weight| weight.layout == OutputAxis::Last);
        let turned = turned.map(|weight| weight.name.clone()).collect();
        let mut found = Self { weights, turned, layers, tables, last: Mutex::new(None) };
        for name in found.tables.clone().into_keys() {
            options.stop.check()?;
            let is_held = |&scale: &f32| ScaleType::F16.holds(Affine::symmetric(scale));
            let has_half_scales = found.codes_of(&name)?.scales.iter().all(is_held);
            found.tables.insert(name, has_half_scales);
        }
        if let Some(path) = &how.statistics {
            let statistics = StatisticsFile::read(path)?;
            statistics.check_model(checkpoint).map_err(|error| error.at(path.display()))?;
            found.scale_inputs(&graph, &statistics, options)?;
        }
        Ok(found)
    }

    /// Chooses a vector for each group of layers with the same input. A tied table keeps its codes for rows.
    fn scale_inputs(&mut self, graph: &Graph, statistics: &StatisticsFile, options: &RunOptions) -> Result<()> {
        let groups = siblings(graph);
        let in_groups: BTreeSet<WeightId> = groups.iter().flatten().copied().collect();
        let singles = (0..graph.weights.len()).map(WeightId).filter(|id| !in_groups.contains(id)).map(|id| vec![id]);
        for (number, group) in groups.into_iter().chain(singles.collect::<Vec<_>>()).enumerate() {
            options.stop.check()?;
            let names: Vec<&str> = group.iter().map(|id| graph.weights[id.0].name.as_str()).collect();
            let is_scalable = |name: &&str| self.layers.contains_key(*name) && !self.tables.contains_key(*name);
            let of = |name: &&str| statistics.layers.get(name.strip_suffix(".weight").unwrap_or(name));
            let Some(stats) = names.iter().find_map(of).filter(|_| names.iter().all(is_scalable)) else {
                continue;
            };
            let matrices = names.iter().map(|name| self.rows_of(name)).collect::<Result<Vec<_>>>()?;
            if matrices.iter().any(|(_, n_cols)| *n_cols != stats.n_inputs()) {
                let message =
                    format!("statistics of {} inputs do not fit the layer; gather them again", stats.n_inputs());
                return Err(Error::input(message).at(names[0]));
            }
            let matrices: Vec<&[f32]> = matrices.iter().map(|(values, _)| values.as_slice()).collect();
            let scale = Arc::new(input_scale(&matrices, stats));
            names.iter().for_each(|name| _ = self.layers.insert((*name).to_string(), Some((number, scale.clone()))));
        }
        Ok(())
    }

    /// Reads a matrix `[out, in]`, and its number of columns.
    fn rows_of(&self, name: &str) -> Result<(Vec<f32>, usize)> {
        let mut values = Vec::with_capacity(self.weights.info(name)?.n_elements());
        let n_cols = self.weights.for_each_rows(name, self.axis(name), &mut |rows| {
            values.extend_from_slice(rows);
            Ok(())
        })?;
        Ok((values, n_cols.max(1)))
    }

    fn axis(&self, name: &str) -> OutputAxis {
        if self.turned.contains(name) { OutputAxis::Last } else { OutputAxis::First }
    }

    fn codes_of(&self, name: &str) -> Result<Arc<RowCodes>> {
        // A poisoned lock only means that another thread panicked elsewhere.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, codes)) = last.as_ref().filter(|(known, _)| known == name) {
            return Ok(codes.clone());
        }
        // The codes of another weight are not kept beside these.
        *last = None;
        let info = self.weights.info(name)?;
        let n_cols = Rows::of(&info.shape, self.axis(name)).n_cols.max(1);
        let scale_type = if self.tables.contains_key(name) { ScaleType::F16 } else { ScaleType::F32 };
        let input_scale = self.layers.get(name).and_then(Option::as_ref).map(|(_, scale)| scale.as_slice());
        let mut codes = RowCodes { codes: Vec::with_capacity(info.n_elements()), scales: Vec::new() };
        self.weights.for_each_rows(name, self.axis(name), &mut |rows| {
            for row in rows.chunks_mut(n_cols) {
                row.iter_mut().zip(input_scale.into_iter().flatten()).for_each(|(value, scale)| *value /= scale);
                codes.push(row, scale_type);
            }
            Ok(())
        })?;
        let codes = Arc::new(codes);
        *last = Some((name.to_string(), codes.clone()));
        Ok(codes)
    }
}

impl CodeSource for QuantizedLayers<'_> {
    fn stream(&self, name: &str, bytes: WeightBytes, to: &mut ByteSink) -> Result<bool> {
        match bytes {
            WeightBytes::InputScales => match self.layers.get(name) {
                Some(Some((_, scale))) => to(bytemuck::cast_slice(scale))?,
                _ => return Ok(false),
            },
            WeightBytes::RowScales => to(&bytes_of(&self.codes_of(name)?.scales, DType::F32))?,
            WeightBytes::HalfRowScales => to(&bytes_of(&self.codes_of(name)?.scales, DType::F16))?,
            WeightBytes::Codes => to(bytemuck::cast_slice(&self.codes_of(name)?.codes))?,
            WeightBytes::TransposedCodes => {
                let found = self.codes_of(name)?;
                let (codes, n_rows) = (bytemuck::cast_slice(&found.codes), found.scales.len());
                let n_cols = codes.len() / n_rows.max(1);
                let mut fill = |columns: Range<usize>, out: &mut [u8]| {
                    copy_columns(codes, n_cols, &columns, out);
                    Ok(())
                };
                transpose_in_parts([n_rows, n_cols], 1, &mut fill, to)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl RowCodes {
    /// Rounds a row to int8 with a scale of its own, which the type holds if it can.
    fn push(&mut self, row: &[f32], scale_type: ScaleType) {
        let affine = scale_type.round(range::absmax(row, Grid::INT8));
        self.codes.extend(row.iter().map(|value| affine.quantize(*value, Grid::INT8)));
        self.scales.push(affine.scale);
    }
}

/// The matrices that nodes have at chosen positions.
fn weights_at(graph: &Graph, is_chosen: impl Fn(&Op, usize) -> bool) -> impl Iterator<Item = &Weight> {
    let all = graph.nodes.iter().flat_map(|node| node.weights().map(move |(at, id)| (&node.op, at, id)));
    let chosen = all.filter(move |(op, at, _)| is_chosen(op, *at));
    chosen.map(|(.., id)| &graph.weights[id.0]).filter(|weight| weight.shape.0.len() == 2)
}

fn linear_weights(graph: &Graph) -> BTreeMap<String, InputScale> {
    let is_matrix = |op: &Op, at| match op {
        Op::Composite(Composite::Linear) => at == 1,
        Op::Composite(Composite::SeparateExperts { .. }) => at > 1,
        _ => false,
    };
    weights_at(graph, is_matrix).map(|weight| (weight.name.clone(), None)).collect()
}

fn table_weights(graph: &Graph) -> BTreeMap<String, bool> {
    let is_table = |op: &Op, at| *op == Op::Composite(Composite::Embedding) && at == 0;
    let tables = weights_at(graph, is_table).filter(|weight| weight.layout == OutputAxis::First);
    tables.map(|weight| (weight.name.clone(), false)).collect()
}

impl WeightForms for QuantizedLayers<'_> {
    fn linear(&self, weight: &Weight) -> LinearForm {
        match self.layers.get(&weight.name) {
            Some(_) => LinearForm::Int8Dynamic,
            None => LinearForm::Float,
        }
    }

    fn input_scale(&self, weight: &Weight) -> Option<usize> {
        self.layers.get(&weight.name)?.as_ref().map(|(number, _)| *number)
    }

    fn table(&self, weight: &Weight) -> TableForm {
        match self.tables.get(&weight.name) {
            Some(&has_half_scales) => TableForm::Int8 { has_half_scales },
            None => TableForm::Float,
        }
    }

    fn is_transposed_in_memory(&self, weight: &Weight) -> bool {
        is_transposed_in_memory(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_rounded_with_a_scale_each() {
        let mut found = RowCodes { codes: Vec::new(), scales: Vec::new() };
        [[1.27, -0.64], [0.0, 0.0], [12.7, 0.1]].iter().for_each(|row| found.push(row, ScaleType::F32));
        assert_eq!(found.codes, [127, -64, 0, 0, 127, 1]);
        assert!((found.scales[0] - 0.01).abs() < 1e-7 && (found.scales[2] - 0.1).abs() < 1e-6);
    }
}
