//! One layer while units of its inputs are removed and added.

use crate::reconstruct::cholesky::{cholesky, inverse_as};
use crate::reconstruct::product::{StridedMatrix, add_product};
use crate::reconstruct::refit::Consumer;
use rayon::prelude::*;
use std::collections::BTreeSet;

/// The weights and the inverse of `A` for the inputs that are left; rows and columns of removed inputs are 0.
pub(super) struct LayerState<'a> {
    layer: Consumer<'a>,
    units: &'a [Vec<usize>],
    ridge: f64,
    /// `(A_SS)⁻¹`, `[n, n]`.
    inverse: Vec<f64>,
    /// The weights, `[n, out]`.
    weights: Vec<f64>,
    /// `A·W₀ᵀ`, `[n, out]`, once units may be added.
    targets: Vec<f64>,
}

impl<'a> LayerState<'a> {
    /// Returns the state with all inputs; none if `A` has no factor.
    pub(super) fn of<E>(
        layer: Consumer<'a>,
        units: &'a [Vec<usize>],
        check_stop: &impl Fn() -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let (n, n_out) = (layer.n, layer.n_out());
        let Some(ridge) = layer.ridge() else { return Ok(None) };
        let all: Vec<usize> = (0..n).collect();
        let mut lower = layer.damped(&all, &all, ridge);
        if !cholesky(&mut lower, n, check_stop)? {
            return Ok(None);
        }
        let inverse = inverse_as(&lower, n, |value| value);
        let weights = (0..n * n_out).map(|at| f64::from(layer.weights[at % n_out * n + at / n_out])).collect();
        Ok(Some(Self { layer, units, ridge, inverse, weights, targets: Vec::new() }))
    }

    /// Adds the cost of removing each unit that is left.
    pub(super) fn add_costs(&self, removed: &BTreeSet<usize>, costs: &mut [f64]) {
        let n_out = self.layer.n_out();
        costs.par_iter_mut().enumerate().filter(|(unit, _)| !removed.contains(unit)).for_each(|(unit, cost)| {
            let columns = &self.units[unit];
            *cost += squares(&self.block(columns), &rows_of(&self.weights, n_out, columns), columns.len());
        });
    }

    /// Removes a unit: `W -= A⁻¹_:g (A⁻¹_gg)⁻¹ W_g` and `A⁻¹ -= A⁻¹_:g (A⁻¹_gg)⁻¹ A⁻¹_g:`.
    pub(super) fn remove(&mut self, unit: usize) {
        let (n, n_out, columns) = (self.layer.n, self.layer.n_out(), &self.units[unit]);
        let k = columns.len();
        let block = self.block(columns);
        let own_weights = solved(&block, rows_of(&self.weights, n_out, columns), k);
        let own_inverse = solved(&block, rows_of(&self.inverse, n, columns), k);
        let rows = self.inverse.par_chunks_mut(n).zip(self.weights.par_chunks_mut(n_out.max(1)));
        rows.for_each(|(inverse, weights)| {
            let factors: Vec<f64> = columns.iter().map(|&column| inverse[column]).collect();
            for (place, factor) in factors.into_iter().enumerate().filter(|(_, factor)| *factor != 0.0) {
                subtract(weights, factor, &own_weights[place * n_out..(place + 1) * n_out]);
                subtract(inverse, factor, &own_inverse[place * n..(place + 1) * n]);
            }
            columns.iter().for_each(|&column| inverse[column] = 0.0);
        });
        for &column in columns {
            self.inverse[column * n..(column + 1) * n].fill(0.0);
            self.weights[column * n_out..(column + 1) * n_out].fill(0.0);
        }
    }

    /// Computes what adding units needs.
    pub(super) fn prepare_adding(&mut self) {
        let all: Vec<usize> = (0..self.layer.n).collect();
        self.targets = self.layer.targets(&all, self.ridge);
    }

    /// Adds the decrease of the loss for adding each of some removed units.
    pub(super) fn add_gains(&self, units: &[usize], gains: &mut [f64]) {
        let columns: Vec<usize> = units.iter().flat_map(|&unit| self.units[unit].iter().copied()).collect();
        let carried = self.carried(&columns);
        let mut start = 0;
        for (&unit, gain) in units.iter().zip(gains) {
            let own = &self.units[unit];
            let added = Added::of(self, own, &carried, start, columns.len());
            *gain += squares(&added.schur, &added.residual, own.len());
            start += own.len();
        }
    }

    /// Adds a removed unit.
    ///
    /// With `T = A⁻¹ A_:r` and `s = A_rr - A_r: T`: `W_r = s⁻¹ (B_r - A_r: W)`, `W -= T W_r`, and `A⁻¹` grows by
    /// `[T; -I] s⁻¹ [T; -I]ᵀ`.
    pub(super) fn add(&mut self, unit: usize) {
        let (n, n_out, columns) = (self.layer.n, self.layer.n_out(), &self.units[unit]);
        let k = columns.len();
        let mut carried = self.carried(columns);
        let Added { schur, residual } = Added::of(self, columns, &carried, 0, k);
        let own_weights = solved(&schur, residual, k);
        for (place, &column) in columns.iter().enumerate() {
            carried[column * k + place] = -1.0;
        }
        // `s⁻¹ [T; -I]ᵀ`, `[k, n]`.
        let turned: Vec<f64> = (0..k * n).map(|at| carried[at % n * k + at / n]).collect();
        let grown = solved(&schur, turned, k);
        let rows = self.inverse.par_chunks_mut(n).zip(self.weights.par_chunks_mut(n_out.max(1)));
        rows.zip(carried.par_chunks(k)).for_each(|((inverse, weights), factors)| {
            for (place, &factor) in factors.iter().enumerate().filter(|(_, factor)| **factor != 0.0) {
                subtract(inverse, -factor, &grown[place * n..(place + 1) * n]);
                subtract(weights, factor, &own_weights[place * n_out..(place + 1) * n_out]);
            }
        });
    }

    /// Returns `A⁻¹ A_:c`, `[n, columns]`.
    fn carried(&self, columns: &[usize]) -> Vec<f64> {
        const N_ROWS: usize = 64;
        let (n, k) = (self.layer.n, columns.len());
        let all: Vec<usize> = (0..n).collect();
        let matrix = self.layer.damped(&all, columns, self.ridge);
        let mut found = vec![0.0; n * k];
        found.par_chunks_mut((N_ROWS * k).max(1)).enumerate().for_each(|(chunk, found)| {
            let rows = &self.inverse[chunk * N_ROWS * n..];
            let rows = StridedMatrix::new(rows, n, found.len() / k, n);
            add_product(found, k, 1.0, rows, StridedMatrix::new(&matrix, k, n, k));
        });
        found
    }

    /// Returns the block of the inverse in these rows and columns.
    fn block(&self, columns: &[usize]) -> Vec<f64> {
        let n = self.layer.n;
        columns.iter().flat_map(|&row| columns.iter().map(move |&column| self.inverse[row * n + column])).collect()
    }
}

/// The matrices for adding a unit.
struct Added {
    /// `A_rr - A_r: T`, `[k, k]`.
    schur: Vec<f64>,
    /// `B_r - A_r: W`, `[k, out]`.
    residual: Vec<f64>,
}

impl Added {
    /// Computes it from `carried`, `[n, n_carried]`, whose columns from `start` on belong to the unit.
    fn of(state: &LayerState, columns: &[usize], carried: &[f64], start: usize, n_carried: usize) -> Self {
        let (n, n_out, k) = (state.layer.n, state.layer.n_out(), columns.len());
        let all: Vec<usize> = (0..n).collect();
        let rows = state.layer.damped(columns, &all, state.ridge);
        let rows = StridedMatrix::new(&rows, n, k, n);
        let mut schur = state.layer.damped(columns, columns, state.ridge);
        add_product(&mut schur, k, -1.0, rows, StridedMatrix::new(&carried[start..], n_carried, n, k));
        let mut residual = rows_of(&state.targets, n_out, columns);
        add_product(&mut residual, n_out, -1.0, rows, StridedMatrix::new(&state.weights, n_out, n, n_out));
        Self { schur, residual }
    }
}

/// Returns some rows of a matrix with rows of `width`.
fn rows_of(values: &[f64], width: usize, rows: &[usize]) -> Vec<f64> {
    rows.iter().flat_map(|&row| &values[row * width..(row + 1) * width]).copied().collect()
}

fn subtract(values: &mut [f64], factor: f64, other: &[f64]) {
    values.iter_mut().zip(other).for_each(|(value, other)| *value -= factor * other);
}

/// Returns the lower Cholesky factor of a small block `[k, k]`; pivots below 0 by rounding become tiny.
fn factor(block: &[f64], k: usize) -> Vec<f64> {
    let mut lower = block.to_vec();
    for i in 0..k {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|t| lower[i * k + t] * lower[j * k + t]).sum();
            let value = block[i * k + j] - sum;
            lower[i * k + j] = if i == j { value.max(f64::MIN_POSITIVE).sqrt() } else { value / lower[j * k + j] };
        }
    }
    lower
}

/// Solves `L X = B` in place of `B`, `[k, width]`.
fn forward(lower: &[f64], values: &mut [f64], k: usize) {
    let width = values.len() / k.max(1);
    for i in 0..k {
        let (before, row) = values.split_at_mut(i * width);
        let row = &mut row[..width];
        (0..i).for_each(|j| subtract(row, lower[i * k + j], &before[j * width..(j + 1) * width]));
        row.iter_mut().for_each(|value| *value /= lower[i * k + i]);
    }
}

/// Returns `tr(Bᵀ M⁻¹ B)` of a block `[k, k]` and `B`, `[k, width]`.
fn squares(block: &[f64], values: &[f64], k: usize) -> f64 {
    if let ([only], 1) = (block, k) {
        return values.iter().map(|value| value * value).sum::<f64>() / only;
    }
    let mut values = values.to_vec();
    forward(&factor(block, k), &mut values, k);
    values.iter().map(|value| value * value).sum()
}

/// Returns `M⁻¹ B` of a block `[k, k]` and `B`, `[k, width]`.
fn solved(block: &[f64], mut values: Vec<f64>, k: usize) -> Vec<f64> {
    let (lower, width) = (factor(block, k), values.len() / k.max(1));
    forward(&lower, &mut values, k);
    for i in (0..k).rev() {
        let (before, row) = values.split_at_mut(i * width);
        let row = &mut row[..width];
        row.iter_mut().for_each(|value| *value /= lower[i * k + i]);
        (0..i).for_each(|j| subtract(&mut before[j * width..(j + 1) * width], lower[i * k + j], row));
    }
    values
}
