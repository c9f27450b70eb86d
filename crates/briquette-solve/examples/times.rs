use briquette_core::{Grouping, Mask};
use briquette_quant::Scheme;
use briquette_solve::*;
use std::{convert::Infallible, time::Instant};
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed | 1;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (s >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}
fn main() {
    let go = || Ok::<(), Infallible>(());
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (rows, n) = (args[0], args[1]);
    // AR(1) correlation: positive definite.
    let gram: Vec<f64> = (0..n * n)
        .map(|at| {
            let (i, j) = (at / n, at % n);
            1000.0 * 0.9f64.powi(i.abs_diff(j).min(400) as i32) * (1.0 + (i % 7) as f64) * (1.0 + (j % 7) as f64)
        })
        .collect();
    let weights = numbers(rows * n, 3);
    for order in [ColumnOrder::Stored, ColumnOrder::ByActivation] {
        let t = Instant::now();
        let Ok(factor) = InverseFactor::new(&gram, 1000, &FactorSpec { order, ..Default::default() }, &go);
        println!("factor {n} {order:?}: {:.3} s {:?}", t.elapsed().as_secs_f64(), factor.outcome());
        let mut spec = "int4-g128".parse::<Scheme>().unwrap().weights;
        if n % 128 != 0 {
            spec.grouping = Grouping::Group(32);
        }
        let quant = briquette_quant::fit(&weights, n, None, &spec);
        let mask = Mask::from_fn(rows, n, |r, c| (r + c) % 3 != 0);
        for keep in [None, Some(&mask)] {
            let mut w = weights.clone();
            let t = Instant::now();
            let Ok(()) = gptq(&mut w, n, &quant, keep, &factor, &go);
            println!("gptq {rows}x{n} {} : {:.3} s", keep.is_some(), t.elapsed().as_secs_f64());
        }
        for s in [DropRule::Count(rows * n / 2), DropRule::CountPerRow(n / 2), DropRule::NOfM { n: 2, m: 4 }] {
            if order == ColumnOrder::ByActivation && matches!(s, DropRule::NOfM { .. }) {
                continue;
            }
            let mut w = weights.clone();
            let t = Instant::now();
            let Ok(_) = sparsegpt(&mut w, n, s, None, &factor, &go);
            println!("sparsegpt {rows}x{n} {s:?}: {:.3} s", t.elapsed().as_secs_f64());
        }
    }
}
