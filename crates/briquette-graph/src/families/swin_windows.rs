//! Attention within windows of patches, shifted or not, with a bias for each relative position.

use super::layers::{Projected, attend, fused_split};
use super::swin_names::SwinNames;
use crate::builder::GraphBuilder;
use crate::graph::{InputSource, ValueId};
use crate::op::{Attention, ElementFunction, Primitive};
use briquette_core::{Error, Result};
use std::collections::BTreeMap;

/// The windows of a network, and the inputs that blocks share.
pub(super) struct Windows {
    batch: usize,
    distances: BTreeMap<usize, ValueId>,
    masks: BTreeMap<WindowGrid, ValueId>,
}

/// How a block cuts patches into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WindowGrid {
    /// Rows and columns of patches, with zeros at the end so that windows divide them.
    padded: [usize; 2],
    /// The side of a window.
    window: usize,
    /// How far windows begin after the first row and column.
    shift: [usize; 2],
}

/// The windows of a block, the heads of its attention, and their inputs.
pub(super) struct BlockWindows {
    grid: WindowGrid,
    /// Rows and columns of patches.
    given: [usize; 2],
    heads: usize,
    distances: ValueId,
    mask: Option<ValueId>,
}

impl Windows {
    pub(super) fn new(batch: usize) -> Self {
        Self { batch, distances: BTreeMap::new(), masks: BTreeMap::new() }
    }

    /// Reads windows and heads off the table of biases. Where one window covers a side, it is not shifted.
    pub(super) fn of_block(
        &mut self,
        to: &mut GraphBuilder,
        table: &str,
        given: [usize; 2],
        is_shifted: bool,
    ) -> Result<BlockWindows> {
        let [rows, heads] = to.headers().table(table).unwrap_or([1, 1]);
        let window = rows.isqrt().div_ceil(2);
        if heads == 0 || window == 0 || (2 * window - 1).checked_pow(2) != Some(rows) {
            let message =
                format!("found {rows} rows and {heads} heads, expected the square of an odd number, and heads");
            return Err(Error::input(message).at(table));
        }
        let padded = given.map(|extent| extent.div_ceil(window).saturating_mul(window));
        let shift = padded.map(|extent| if is_shifted && extent > window { window / 2 } else { 0 });
        let grid = WindowGrid { padded, window, shift };
        let n_tokens = window.saturating_mul(window);
        let distances = *self.distances.entry(window).or_insert_with(|| {
            let name = format!("window_distances.{window}");
            to.input_from(&name, &[n_tokens; 2], InputSource::WindowDistances { window })
        });
        let n_windows = self.batch.saturating_mul(grid.n_windows());
        let mask = (shift != [0; 2]).then(|| {
            *self.masks.entry(grid).or_insert_with(|| {
                let source = InputSource::WindowMask { grid: padded, window, shift };
                let name = format!("window_mask.{}x{}", padded[0], padded[1]);
                to.input_from(&name, &[n_windows, 1, n_tokens, n_tokens], source)
            })
        });
        Ok(BlockWindows { grid, given, heads, distances, mask })
    }

    /// Attention within windows of `[batch, height, width, channels]`.
    pub(super) fn attention(
        &self,
        to: &mut GraphBuilder,
        path: &str,
        names: &SwinNames,
        block: &BlockWindows,
        x: ValueId,
    ) -> Result<ValueId> {
        let at = |name: &str| format!("{path}.{name}");
        let BlockWindows { grid, given, heads, .. } = *block;
        let [width, inner] = to.headers().matrix(&format!("{}.weight", at(names.out))).unwrap_or([heads; 2]);
        let x = padded(to, &at("pad"), given, grid.padded, x);
        let x = rolled(to, &at("shift"), grid.padded, grid.shift, x);
        let x = self.cut(to, path, grid, width, x);
        let (q, k, v) = match names.projections {
            [fused] => {
                let fused = at(fused);
                let x = to.linear(&fused, x)?;
                let parts = fused_split(to, &fused, &[inner; 3], x);
                (parts[0], parts[1], parts[2])
            }
            names => {
                let mut part = |index: usize| to.linear(&at(names[index]), x);
                (part(0)?, part(1)?, part(2)?)
            }
        };
        let bias = bias(to, &at(names.table), block)?;
        let projected = Projected { q, k, v, heads, kv_heads: heads };
        let mixed = attend(to, &at("attention"), &projected, Attention::full(heads), Some(bias));
        let mixed = to.linear(&at(names.out), mixed)?;
        let x = self.joined(to, path, grid, width, mixed);
        let back = [0, 1].map(|axis| (grid.padded[axis] - grid.shift[axis]) % grid.padded[axis]);
        let x = rolled(to, &at("shift_back"), grid.padded, back, x);
        Ok(cropped(to, &at("crop"), grid.padded, given, x))
    }

    /// `[batch, height, width, channels]` to `[batch · windows, patches, channels]`.
    fn cut(&self, to: &mut GraphBuilder, path: &str, grid: WindowGrid, width: usize, x: ValueId) -> ValueId {
        let ([rows, columns], side) = (grid.counts(), grid.window);
        let cut = Primitive::Reshape(vec![self.batch, rows, side, columns, side, width]);
        let x = to.node(&format!("{path}.windows.cut"), cut, &[x.into()]);
        let by_window = Primitive::Transpose(vec![0, 1, 3, 2, 4, 5]);
        let x = to.node(&format!("{path}.windows.first"), by_window, &[x.into()]);
        let n_windows = self.batch.saturating_mul(grid.n_windows());
        let tokens = Primitive::Reshape(vec![n_windows, side.saturating_mul(side), width]);
        to.node(&format!("{path}.windows"), tokens, &[x.into()])
    }

    /// `[batch · windows, patches, channels]` to `[batch, height, width, channels]`.
    fn joined(&self, to: &mut GraphBuilder, path: &str, grid: WindowGrid, width: usize, x: ValueId) -> ValueId {
        let ([rows, columns], side) = (grid.counts(), grid.window);
        let cut = Primitive::Reshape(vec![self.batch, rows, columns, side, side, width]);
        let x = to.node(&format!("{path}.joined.cut"), cut, &[x.into()]);
        let by_row = Primitive::Transpose(vec![0, 1, 3, 2, 4, 5]);
        let x = to.node(&format!("{path}.joined.rows"), by_row, &[x.into()]);
        let image = Primitive::Reshape(vec![self.batch, grid.padded[0], grid.padded[1], width]);
        to.node(&format!("{path}.joined"), image, &[x.into()])
    }
}

impl WindowGrid {
    /// Rows and columns of windows.
    fn counts(self) -> [usize; 2] {
        self.padded.map(|extent| extent / self.window)
    }

    fn n_windows(self) -> usize {
        let [rows, columns] = self.counts();
        rows.saturating_mul(columns)
    }
}

/// The bias of each head and relative position, `[heads, patches, patches]`, and the mask of shifted windows.
fn bias(to: &mut GraphBuilder, table: &str, block: &BlockWindows) -> Result<ValueId> {
    let rows = to.lookup(table, block.distances)?;
    let bias = to.node(&format!("{table}.by_head"), Primitive::Transpose(vec![2, 0, 1]), &[rows.into()]);
    let Some(mask) = block.mask else { return Ok(bias) };
    let add = Primitive::Elementwise(ElementFunction::Add);
    Ok(to.node(&format!("{table}.masked"), add, &[bias.into(), mask.into()]))
}

/// Adds zeros after the last row and column.
pub(super) fn padded(to: &mut GraphBuilder, path: &str, from: [usize; 2], to_grid: [usize; 2], x: ValueId) -> ValueId {
    if from == to_grid {
        return x;
    }
    let after = vec![0, to_grid[0] - from[0], to_grid[1] - from[1], 0];
    to.node(path, Primitive::Pad { before: vec![0; 4], after }, &[x.into()])
}

/// Drops the rows and columns that [`padded`] added.
fn cropped(to: &mut GraphBuilder, path: &str, from: [usize; 2], to_grid: [usize; 2], mut x: ValueId) -> ValueId {
    for axis in [0, 1] {
        if from[axis] != to_grid[axis] {
            let slice = Primitive::Slice { axis: axis + 1, start: 0, len: to_grid[axis] };
            x = to.node(&format!("{path}.{axis}"), slice, &[x.into()]);
        }
    }
    x
}

/// Moves the first `shift` rows and columns to the end.
fn rolled(to: &mut GraphBuilder, path: &str, grid: [usize; 2], shift: [usize; 2], mut x: ValueId) -> ValueId {
    for (index, (extent, shift)) in grid.into_iter().zip(shift).enumerate().filter(|(_, (_, shift))| *shift > 0) {
        let axis = index + 1;
        let at = |name: &str| format!("{path}.{index}.{name}");
        let first = to.node(&at("first"), Primitive::Slice { axis, start: 0, len: shift }, &[x.into()]);
        let rest = Primitive::Slice { axis, start: shift, len: extent - shift };
        let rest = to.node(&at("rest"), rest, &[x.into()]);
        x = to.node(&at("joined"), Primitive::Concat { axis }, &[rest.into(), first.into()]);
    }
    x
}
