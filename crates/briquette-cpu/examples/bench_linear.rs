//! Times int8 linear layers and prints a line of JSON for each measurement.
//!
//! `bench_linear [--path NAME] [--kn 768x768,..] [--m 1,8,..] [--seconds 0.3] [--rten] [--sparse] [--int4 32]`; the
//! number of threads is `RAYON_NUM_THREADS`.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use briquette_cpu::{
    ActivationGrid, Int8Weights, PackedInt4, PackedInt8, PackedW4A8, SimdLevel, SparseInt8, active_level, int4_linear,
    int8_linear, register_peak, w4a8_linear,
};
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, QuantParams};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, NdTensorView};
use std::time::Instant;

struct Options {
    level: SimdLevel,
    shapes: Vec<(usize, usize)>,
    rows: Vec<usize>,
    seconds: f64,
    rten: bool,
    sparse: bool,
    /// The group size of int4 weights.
    int4: Option<usize>,
}

fn main() {
    let options = options();
    let peak = register_peak().map_or(0.0, |peak| peak / 1e9);
    let threads = rayon::current_num_threads();
    println!("{{\"what\":\"peak\",\"gops\":{peak:.1},\"threads\":{threads},\"path\":\"{}\"}}", options.level);
    for &(k, n) in &options.shapes {
        let cell = Cell::new(k, n, &options);
        for &m in &options.rows {
            cell.time(m, &options);
        }
    }
}

fn options() -> Options {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).map(|at| args[at + 1].as_str());
    let list = |text: &str| text.split(',').map(|item| item.parse().unwrap()).collect::<Vec<usize>>();
    let shapes = value("--kn").unwrap_or("768x768,768x3072,3072x768,4096x4096,4096x11008");
    Options {
        level: value("--path")
            .filter(|name| *name != "active")
            .map_or(active_level(), |name| SimdLevel::named(name).unwrap()),
        shapes: shapes.split(',').map(|shape| list(&shape.replace('x', ","))).map(|pair| (pair[0], pair[1])).collect(),
        rows: list(value("--m").unwrap_or("1,8,64,512")),
        seconds: value("--seconds").map_or(0.3, |seconds| seconds.parse().unwrap()),
        rten: args.iter().any(|arg| arg == "--rten"),
        sparse: args.iter().any(|arg| arg == "--sparse"),
        int4: value("--int4").map(|group| group.parse().unwrap()),
    }
}

/// Returns the median time of at least five calls, in seconds.
fn median_time(seconds: f64, mut call: impl FnMut()) -> f64 {
    call();
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed().as_secs_f64() < seconds {
        let call_start = Instant::now();
        call();
        times.push(call_start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn numbers(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    })
}

struct Cell {
    k: usize,
    n: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    packed: PackedInt8,
    /// The sparsity in percent, and the weights.
    sparse: Vec<(usize, SparseInt8)>,
    int4: Option<(PackedInt4, PackedW4A8)>,
}

impl Cell {
    fn new(k: usize, n: usize, options: &Options) -> Self {
        let codes: Vec<i8> = numbers(n * k, 7).map(|bits| (bits % 255) as u8 as i8).collect();
        let scales = vec![0.01; n];
        let packed = PackedInt8::new(&codes, &scales, n, k).unwrap();
        let levels: &[usize] = if options.sparse { &[50, 75, 90] } else { &[] };
        let sparse = |percent: usize| {
            let keep = numbers(n * k, 99).map(|bits| i8::from(bits as usize % 100 >= percent));
            let kept: Vec<i8> = codes.iter().zip(keep).map(|(code, keep)| code * keep).collect();
            (percent, SparseInt8::new(&kept, &scales, n, k).unwrap())
        };
        let sparse = levels.iter().map(|&percent| sparse(percent)).collect();
        let int4 = options.int4.map(|group| {
            let codes: Vec<i8> = codes.iter().map(|code| code >> 4).collect();
            let scales = vec![0.01; n * k.div_ceil(group)];
            let packed = PackedW4A8::new(&codes, &scales, n, k, group).unwrap();
            (PackedInt4::new(&codes, &scales, n, k, group), packed)
        });
        Self { k, n, codes, scales, packed, sparse, int4 }
    }

    fn time(&self, m: usize, options: &Options) {
        let x: Vec<f32> = numbers(m * self.k, 3).map(|bits| bits as f32 / (1_u64 << 30) as f32 - 1.0).collect();
        let (mut y, bias) = (vec![0.0; m * self.n], vec![0.5; self.n]);
        for (name, grid) in [("symmetric", ActivationGrid::Symmetric), ("asymmetric", ActivationGrid::Asymmetric)] {
            let seconds = median_time(options.seconds, || {
                int8_linear(options.level, &x, m, grid, &self.packed, Some(&bias), &mut y);
            });
            self.print(name, m, seconds, self.packed.n_bytes());
        }
        for (percent, weights) in &self.sparse {
            let seconds = median_time(options.seconds, || {
                int8_linear(options.level, &x, m, ActivationGrid::Asymmetric, weights, Some(&bias), &mut y);
            });
            self.print(&format!("sparse{percent}"), m, seconds, weights.n_bytes());
        }
        if let Some((weight_only, w4a8)) = &self.int4 {
            let seconds = median_time(options.seconds, || {
                int4_linear(options.level, &x, m, weight_only, Some(&bias), &mut y);
            });
            self.print("int4 weight-only", m, seconds, weight_only.n_bytes());
            let seconds = median_time(options.seconds, || {
                w4a8_linear(options.level, &x, m, ActivationGrid::Asymmetric, w4a8, Some(&bias), &mut y);
            });
            self.print("w4a8", m, seconds, w4a8.n_bytes());
        }
        if options.rten {
            self.print("rten", m, self.time_rten(m, &x, options), 0);
        }
    }

    /// Times `rten-gemm` with scales applied afterwards. The time to quantize activations is not included, in
    /// its favour.
    fn time_rten(&self, m: usize, x: &[f32], options: &Options) -> f64 {
        let gemm = GemmExecutor::<u8, i8, i32>::default();
        let weights = NdTensor::from_data([self.n, self.k], self.codes.clone());
        let packed = gemm.prepack_b(weights.view().transposed());
        let codes: Vec<u8> = x.iter().map(|value| (value * 127.0 + 128.0) as u8).collect();
        let (mut sums, mut y, zeros) = (vec![0; m * self.n], vec![0.0; m * self.n], vec![128; m]);
        median_time(options.seconds, || {
            let rows = GemmInputA::Unpacked(NdTensorView::from_data([m, self.k], &codes[..]));
            let quant = Some(QuantParams { zero_point: &zeros[..] });
            let options = GemmOptions { a_quant: quant, ..Default::default() };
            gemm.gemm(&mut sums, rows, GemmInputB::Packed(&packed), options).unwrap();
            for (y, sums) in y.chunks_mut(self.n).zip(sums.chunks(self.n)) {
                y.iter_mut().zip(sums).zip(&self.scales).for_each(|((y, &sum), scale)| *y = sum as f32 * scale * 0.01);
            }
        })
    }

    fn print(&self, what: &str, m: usize, seconds: f64, n_bytes: usize) {
        let gops = 2.0 * (m * self.k * self.n) as f64 / seconds / 1e9;
        let (k, n, us) = (self.k, self.n, seconds * 1e6);
        println!(
            "{{\"what\":\"{what}\",\"k\":{k},\"n\":{n},\"m\":{m},\"us\":{us:.1},\"gops\":{gops:.1},\"bytes\":{n_bytes}}}"
        );
    }
}
