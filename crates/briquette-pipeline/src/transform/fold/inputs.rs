//! The layers that read a value, as rows, and the statistics of the value.

use super::edits::Edits;
use crate::transform::headed::is_name_of;
use briquette_core::{Error, InputStats, Result};
use briquette_formats::TensorSource;
use briquette_formats::input_stats::StatisticsFile;
use briquette_graph::absorb::{Reader, ScalePlace};
use briquette_methods::quant::channel_scales::ScaledColumns;

/// The layers that read a value, and the statistics of the value.
pub(super) struct PlaceInputs<'a> {
    layers: Vec<Vec<f32>>,
    stats: &'a InputStats,
    units: Vec<usize>,
    n_units: usize,
}

impl<'a> PlaceInputs<'a> {
    /// Reads the weights of the layers that read a value.
    ///
    /// # Errors
    /// - Input: the statistics of the value are missing.
    /// - Refused: a weight is not finite.
    /// - Io.
    pub(super) fn of(edits: &Edits, place: &ScalePlace, statistics: &'a StatisticsFile) -> Result<Self> {
        let stats = stats(edits, place, statistics)?;
        let axis = &place.readers[0].inputs;
        let units: Vec<usize> = axis.units.iter().flatten().map(|unit| *unit as usize).collect();
        let layers = place.readers.iter().map(|reader| rows(edits, reader)).collect::<Result<_>>()?;
        Ok(Self { layers, stats, units, n_units: place.n_units })
    }

    pub(super) fn columns(&self) -> ScaledColumns<'_> {
        ScaledColumns { layers: &self.layers, stats: self.stats, units: &self.units, n_units: self.n_units }
    }
}

/// Returns the rows `[out, in]` of a layer.
fn rows(edits: &Edits, reader: &Reader) -> Result<Vec<f32>> {
    let values = edits.values(reader.inputs.weight)?;
    let n_columns = reader.inputs.units.len();
    let n_rows = values.len().checked_div(n_columns).unwrap_or(0);
    match reader.inputs.axis {
        0 => Ok((0..values.len()).map(|at| values[at % n_columns * n_rows + at / n_columns]).collect()),
        _ => Ok(values),
    }
}

/// Returns the statistics of a value: those of the first layer that reads it and has some.
///
/// # Errors
/// Input: they are missing, or have another number of inputs.
pub(super) fn stats<'a>(edits: &Edits, place: &ScalePlace, statistics: &'a StatisticsFile) -> Result<&'a InputStats> {
    let (graph, names) = (edits.graph(), edits.checkpoint().tensors());
    let n_columns = place.readers[0].inputs.units.len();
    let found = place.readers.iter().find_map(|reader| {
        let weight = &graph.weights[reader.inputs.weight.0];
        let mut own = names.iter().map(|info| info.name.as_str()).filter(|name| is_name_of(weight, name));
        own.find_map(|name| statistics.layers.get(name.strip_suffix(".weight").unwrap_or(name)))
    });
    let message = match found {
        None => {
            "the statistics have no inputs of this layer; exclude the tensor, or gather them with `briquette calibrate`"
                .into()
        }
        Some(stats) if stats.n_inputs() != n_columns => {
            format!("the statistics have {} inputs, expected {n_columns}", stats.n_inputs())
        }
        Some(stats) if stats.count == 0 => {
            "the calibration observed no inputs of this layer; exclude the tensor".into()
        }
        Some(stats) => return Ok(stats),
    };
    let weight = &graph.weights[place.readers[0].inputs.weight.0];
    Err(Error::input(message).at(format_args!("tensor {:?}", weight.name)))
}
