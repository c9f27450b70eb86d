//! Compares every product on the emulated GPU with plain sums of integers and floats.

mod support;

use briquette_cuda::bitmask::BLOCK_ROWS;
use briquette_cuda::dp4a::product_dp4a;
use briquette_cuda::epilogue::EpilogueFlags;
use briquette_cuda::few_rows::{OUTPUTS, WARPS, few_rows_codes};
use briquette_cuda::few_rows_sparse as sparse;
use briquette_cuda::mma::{MmaTile, product_mma};
use briquette_cuda::pack;
use cubecl_core::prelude::*;
use support::cuda::Gpu;
use support::emulator::{Buffer, ByValue, Emulated};
use support::{F32, codes, floats, kernel, target};

/// A product and its expected result.
struct Case {
    shape: [usize; 3],
    a: Vec<i8>,
    b: Vec<i8>,
    scales: Vec<f32>,
    zeros: Vec<i32>,
    col_scales: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
    before: Vec<f32>,
    /// Rows of an image.
    image_rows: usize,
    /// Rows that share a scale.
    scale_rows: usize,
    /// The first column to compute.
    first_col: usize,
    finish: EpilogueFlags,
}

const FINISHES: [EpilogueFlags; 3] = [
    EpilogueFlags { scale: false, shift: false, adds: false, relu: false },
    EpilogueFlags { scale: false, shift: true, adds: false, relu: false },
    EpilogueFlags { scale: true, shift: true, adds: true, relu: true },
];

impl Case {
    /// Returns a case with `m` rows in images of `image_rows`, `n` columns and `k` inputs.
    fn new([m, n, k]: [usize; 3], image_rows: usize, first_col: usize, finish: EpilogueFlags) -> Self {
        Self::with_scales([m, n, k], [image_rows; 2], first_col, finish)
    }

    /// Returns the same with a scale for every `scale_rows` rows.
    fn with_scales(
        [m, n, k]: [usize; 3],
        [image_rows, scale_rows]: [usize; 2],
        first_col: usize,
        finish: EpilogueFlags,
    ) -> Self {
        let n_scales = m.div_ceil(scale_rows);
        Self {
            shape: [m, n, k],
            a: codes(m * k, 3, 1),
            b: codes(n * k, 5, 2),
            scales: floats(n_scales, 7).iter().map(|scale| scale + 1.5).collect(),
            zeros: (0..n_scales).map(|i| i as i32 * 37 % 255 - 128).collect(),
            col_scales: floats(n, 11).iter().map(|scale| scale * 0.01).collect(),
            scale: floats(n, 13),
            shift: floats(n, 17),
            before: floats(m * n, 19),
            image_rows,
            scale_rows,
            first_col,
            finish,
        }
    }

    /// Returns the position of output `(row, col)`, in contiguous rows or in images `[col, row]`.
    fn place(&self, row: usize, col: usize) -> usize {
        let [_, n, _] = self.shape;
        let (image, pixel) = (row / self.image_rows, row % self.image_rows);
        if self.image_rows == 1 { row * n + col } else { (image * n + col) * self.image_rows + pixel }
    }

    fn expected(&self) -> Vec<f32> {
        let ([m, n, k], mut y) = (self.shape, self.before.clone());
        for row in 0..m {
            for col in self.first_col..n {
                let scale = row / self.scale_rows;
                let products = (0..k)
                    .map(|i| (i32::from(self.a[row * k + i]) - self.zeros[scale]) * i32::from(self.b[col * k + i]));
                let mut value = products.sum::<i32>() as f32 * self.scales[scale] * self.col_scales[col];
                value = if self.finish.scale { value * self.scale[col] } else { value };
                value = if self.finish.shift { value + self.shift[col] } else { value };
                let y = &mut y[self.place(row, col)];
                value = if self.finish.adds { value + *y } else { value };
                *y = if self.finish.relu { value.max(0.0) } else { value };
            }
        }
        y
    }

    fn assert_eq(&self, y: &[f32], what: &str) {
        for (i, (y, expected)) in y.iter().zip(self.expected()).enumerate() {
            let error = (y - expected).abs() / expected.abs().max(1.0);
            assert!(error <= 1e-5, "{what} {:?}: {y} is {expected} at {i}", self.shape);
        }
    }

    fn sums(&self) -> Vec<i32> {
        self.b.chunks(self.shape[2]).map(|row| row.iter().map(|&code| i32::from(code)).sum()).collect()
    }

    /// Returns the buffers after codes and weights.
    fn rest(&self) -> [Buffer; 7] {
        let [scales, col_scales] = [&self.scales, &self.col_scales].map(|scales| Buffer::of(&scales[..]));
        let [scale, shift, y] = [&self.scale, &self.shift, &self.before].map(|values| Buffer::of(&values[..]));
        [scales, Buffer::of(&self.zeros), Buffer::of(&self.sums()), col_scales, scale, shift, y]
    }

    fn scalars(&self, row_units: usize) -> Vec<ByValue> {
        let [m, n, _] = self.shape;
        let target = match self.image_rows {
            1 => [1, self.scale_rows, n, 0, 1, 0, self.first_col],
            rows => [rows, self.scale_rows, n * rows, 1, rows, 0, self.first_col],
        };
        [m, n, row_units].into_iter().chain(target).map(|n| ByValue::of(n as u32)).collect()
    }

    fn mma(&self, tile: MmaTile, sparse: bool) -> Option<Vec<f32>> {
        let gpu = Gpu::sm(80);
        let ([m, n, k], block) = (self.shape, CubeDim::new_2d(32, tile.n_warps() as u32));
        let kernel = kernel!(gpu, block, product_mma::ProductMma::new, [b b b b b b b b b b b b], (), (), (), target(), tile, sparse, self.finish, F32);
        let kernel = Emulated::new(gpu, Box::new(kernel))?;
        let nothing = || Buffer::of(&[0_u32; 4]);
        let weights = if sparse {
            let blocks = pack::blocks(&self.b, n, k);
            [nothing(), Buffer::of(&blocks.bits), Buffer::of(&blocks.values), Buffer::of(&blocks.bases)]
        } else {
            [Buffer::of(&pack::rows(&self.b, n, k)), nothing(), nothing(), nothing()]
        };
        let buffers = [Buffer::of(&pack::rows(&self.a, m, k))].into_iter().chain(weights).chain(self.rest());
        let [rows, cols] = tile.extents();
        let cubes = [(n - self.first_col).div_ceil(cols) as u32, m.div_ceil(rows) as u32, 1];
        let out = kernel.run(cubes, buffers, self.scalars(pack::row_words(k) / 4));
        Some(out[11].to_vec())
    }

    /// Runs a kernel that reads `lanes` words at once.
    fn by_words(
        &self,
        gpu: Gpu,
        kernel: Box<dyn cubecl_runtime::kernel::CubeKernel>,
        cubes: [u32; 3],
        lanes: usize,
    ) -> Option<Vec<f32>> {
        let [m, n, k] = self.shape;
        let kernel = Emulated::new(gpu, kernel)?;
        let [a, b] = [(&self.a, m), (&self.b, n)].map(|(codes, rows)| Buffer::of(&pack::rows(codes, rows, k)));
        let out = kernel.run(cubes, [a, b].into_iter().chain(self.rest()), self.scalars(pack::row_words(k) / lanes));
        Some(out[8].to_vec())
    }

    fn dp4a(&self) -> Option<Vec<f32>> {
        let gpu = Gpu::sm(75);
        let (block, new) = (CubeDim::new_1d(256), product_dp4a::ProductDp4a::new);
        let kernel = kernel!(gpu, block, new, [b b b b b b b b b], (), (), (), target(), self.finish, F32);
        let [m, n, _] = self.shape;
        let n_cubes = (m * (n - self.first_col)).div_ceil(256);
        self.by_words(gpu, Box::new(kernel), [n_cubes as u32, 1, 1], 1)
    }

    fn few_rows_sparse(&self, rows: usize) -> Option<Vec<f32>> {
        let (gpu, [m, n, k]) = (Gpu::sm(75), self.shape);
        let (block, new) = (CubeDim::new_2d(32, sparse::WARPS as u32), sparse::few_rows_sparse::FewRowsSparse::new);
        let kernel = kernel!(gpu, block, new, [b b b b b b b b b b b], (), (), (), target(), rows, self.finish, F32);
        let kernel = Emulated::new(gpu, Box::new(kernel))?;
        let blocks = pack::blocks(&self.b, n, k);
        let codes = [pack::rows(&self.a, m, k), blocks.bits, blocks.values, blocks.bases];
        let buffers = codes.iter().map(|words| Buffer::of(words)).chain(self.rest());
        let cubes = [(n - self.first_col).div_ceil(BLOCK_ROWS) as u32, m.div_ceil(rows) as u32, 1];
        let out = kernel.run(cubes, buffers, self.scalars(pack::row_words(k) / 4));
        Some(out[10].to_vec())
    }

    fn few_rows(&self, rows: usize) -> Option<Vec<f32>> {
        let gpu = Gpu::sm(75);
        let (block, new) = (CubeDim::new_2d(32, WARPS as u32), few_rows_codes::FewRowsCodes::new);
        let kernel = kernel!(gpu, block, new, [b b b b b b b b b], (), (), (), target(), rows, self.finish, F32);
        let [m, n, _] = self.shape;
        let cubes = [(n - self.first_col).div_ceil(WARPS * OUTPUTS), m.div_ceil(rows), 1];
        self.by_words(gpu, Box::new(kernel), cubes.map(|n| n as u32), 4)
    }
}

#[test]
fn matrix_instructions_give_the_sums_at_awkward_shapes() {
    let tiles = [MmaTile::LARGE, MmaTile::MEDIUM, MmaTile::SMALL];
    let shapes = [[1, 1, 1], [17, 9, 33], [64, 64, 64], [130, 65, 70], [5, 130, 200]];
    for (i, shape) in shapes.into_iter().enumerate() {
        let case = Case::new(shape, 1, 0, FINISHES[i % 3]);
        for tile in tiles {
            for is_sparse in [false, true] {
                let Some(y) = case.mma(tile, is_sparse) else { return };
                case.assert_eq(&y, &format!("{tile:?}, sparse: {is_sparse}"));
            }
        }
    }
}

#[test]
fn products_write_images_and_only_their_columns() {
    for (first_col, is_sparse) in [(0, false), (16, true), (7, false)] {
        // One scale for an image, or for each of its rows.
        for scale_rows in [20, 1] {
            let case = Case::with_scales([60, 40, 50], [20, scale_rows], first_col, FINISHES[2]);
            let Some(y) = case.mma(MmaTile::MEDIUM, is_sparse) else { return };
            case.assert_eq(&y, "mma");
            case.assert_eq(&case.dp4a().expect("a compiler"), "dp4a");
            case.assert_eq(&case.few_rows(4).expect("a compiler"), "few rows");
            if is_sparse {
                case.assert_eq(&case.few_rows_sparse(4).expect("a compiler"), "few rows, sparse");
            }
        }
    }
}

#[test]
fn dot_products_give_the_sums_at_awkward_shapes() {
    for (i, shape) in [[1, 1, 1], [3, 9, 33], [9, 40, 130], [2, 17, 300], [5, 50, 700]].into_iter().enumerate() {
        let case = Case::new(shape, 1, 0, FINISHES[i % 3]);
        let Some(y) = case.dp4a() else { return };
        case.assert_eq(&y, "dp4a");
        for rows in [1, 2, 4, 8] {
            case.assert_eq(&case.few_rows(rows).expect("a compiler"), &format!("{rows} rows"));
            case.assert_eq(&case.few_rows_sparse(rows).expect("a compiler"), &format!("{rows} rows, sparse"));
        }
    }
}

#[test]
fn the_largest_sum_does_not_overflow() {
    let k = 1 << 16;
    let mut case = Case::new([1, 1, k], 1, 0, FINISHES[0]);
    (case.a, case.b, case.zeros) = (vec![-128; k], vec![-128; k], vec![127]);
    let Some(y) = case.mma(MmaTile::SMALL, false) else { return };
    case.assert_eq(&y, "mma");
    case.assert_eq(&case.few_rows(1).expect("a compiler"), "few rows");
    case.assert_eq(&case.few_rows_sparse(1).expect("a compiler"), "few rows, sparse");
}
