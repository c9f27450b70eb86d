//! 2-D max pooling and its gradient.

use super::conv2d_shape::Conv2dShape;
use super::threads::PAYS;
use rayon::prelude::*;

/// Computes `y[plane, p] = max x[plane, source of (p, ky, kx)]` over the taps inside the plane.
///
/// The result is NaN if one of them is NaN. Planes have height and width `size`; kernel, stride, dilation and
/// padding come from `shape`.
///
/// # Panics
/// If `x` is not whole planes.
pub fn max_pool2d(x: &[f32], size: [usize; 2], shape: &Conv2dShape) -> Vec<f32> {
    let ([height, width], n_plane) = (shape.out_size(size), n_plane(x, size));
    let mut y = vec![f32::NEG_INFINITY; x.len() / n_plane * height * width];
    if y.is_empty() {
        return y;
    }
    let ([rows, cols], together) = (taps(size, shape), planes_together(x.len(), n_plane));
    y.par_chunks_mut(together * height * width).zip(x.par_chunks(together * n_plane)).for_each(|(y, x)| {
        let mut highest = vec![0.0; size[1]];
        for (y, x) in y.chunks_exact_mut(height * width).zip(x.chunks_exact(n_plane)) {
            if is_two_by_two(shape) {
                pool_two_by_two(x, size[1], y, width);
                continue;
            }
            for (y, rows) in y.chunks_exact_mut(width).zip(&rows) {
                highest.fill(f32::NEG_INFINITY);
                for row in rows {
                    highest
                        .iter_mut()
                        .zip(&x[row * size[1]..])
                        .for_each(|(highest, x)| *highest = larger(*highest, *x));
                }
                for (y, cols) in y.iter_mut().zip(&cols) {
                    *y = cols.iter().fold(f32::NEG_INFINITY, |y, col| larger(y, highest[*col]));
                }
            }
        }
    });
    y
}

/// Computes the gradient of `x`.
///
/// Each `dy[plane, p]` is added to the first pixel, row by row, that was the maximum or NaN.
///
/// # Panics
/// See [`max_pool2d`]; also if `dy` does not have one value per output.
pub fn max_pool2d_grad(x: &[f32], dy: &[f32], size: [usize; 2], shape: &Conv2dShape) -> Vec<f32> {
    let ([height, width], n_plane) = (shape.out_size(size), n_plane(x, size));
    assert_eq!(dy.len(), x.len() / n_plane * height * width, "outputs of planes of {size:?}");
    let mut dx = vec![0.0; x.len()];
    if dy.is_empty() {
        return dx;
    }
    let ([rows, cols], together) = (taps(size, shape), planes_together(x.len(), n_plane));
    let chunks = x.par_chunks(together * n_plane).zip(dy.par_chunks(together * height * width));
    dx.par_chunks_mut(together * n_plane).zip(chunks).for_each(|(dx, (x, dy))| {
        let planes = x.chunks_exact(n_plane).zip(dy.chunks_exact(height * width));
        for (dx, (x, dy)) in dx.chunks_exact_mut(n_plane).zip(planes) {
            for (dy, rows) in dy.chunks_exact(width).zip(&rows) {
                for (dy, cols) in dy.iter().zip(&cols) {
                    if let Some(pixel) = first_highest(x, size[1], rows, cols) {
                        dx[pixel] += dy;
                    }
                }
            }
        }
    });
    dx
}

fn is_two_by_two(shape: &Conv2dShape) -> bool {
    let [[top, _], [left, _]] = shape.padding;
    [shape.kernel, shape.stride] == [[2, 2]; 2] && shape.dilation == [1, 1] && [top, left] == [0, 0]
}

/// Pools with non-overlapping 2x2 windows, the most common case, from width `x_width` to `y_width`.
fn pool_two_by_two(x: &[f32], x_width: usize, y: &mut [f32], y_width: usize) {
    for (y, rows) in y.chunks_exact_mut(y_width).zip(x.chunks(2 * x_width)) {
        let (top, bottom) = rows.split_at(x_width);
        let pairs = top.as_chunks::<2>().0.iter().zip(bottom.as_chunks::<2>().0);
        for (y, ([a, b], [c, d])) in y.iter_mut().zip(pairs) {
            *y = larger(larger(*a, *b), larger(*c, *d));
        }
    }
}

/// Returns the first pixel with the largest value among the given rows and columns.
fn first_highest(x: &[f32], width: usize, rows: &[usize], cols: &[usize]) -> Option<usize> {
    let mut best = rows.first()? * width + cols.first()?;
    for row in rows {
        for col in cols {
            let pixel = row * width + col;
            best = if is_larger(x[pixel], x[best]) { pixel } else { best };
        }
    }
    Some(best)
}

/// Returns the rows of a plane in the window of each output row, and the same for columns.
fn taps(size: [usize; 2], shape: &Conv2dShape) -> [Vec<Vec<usize>>; 2] {
    let out = shape.out_size(size);
    [0, 1].map(|axis| {
        let (step, padding) = (shape.dilation[axis], shape.padding[axis][0]);
        let under = |first: usize| {
            let taps = (0..shape.kernel[axis]).filter_map(|tap| (first + tap * step).checked_sub(padding));
            taps.filter(|at| *at < size[axis]).collect()
        };
        (0..out[axis]).map(|at| under(at * shape.stride[axis])).collect()
    })
}

/// Returns whether `b` replaces `a` as the maximum. NaN counts as larger than any number.
fn is_larger(b: f32, a: f32) -> bool {
    b > a || (b.is_nan() && !a.is_nan())
}

fn larger(a: f32, b: f32) -> f32 {
    if is_larger(b, a) { b } else { a }
}

/// Returns the elements of a plane, or 1 if it is empty.
fn n_plane(x: &[f32], size: [usize; 2]) -> usize {
    let n = (size[0] * size[1]).max(1);
    assert!(x.len().is_multiple_of(n), "{} values in planes of {size:?}", x.len());
    n
}

/// Returns the number of planes per task of a thread.
fn planes_together(n: usize, n_plane: usize) -> usize {
    let n_threads = if n >= PAYS { rayon::current_num_threads() } else { 1 };
    (n / n_plane).div_ceil(n_threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_gives_the_maximum_or_nan() {
        let x = [1.0, 5.0, 2.0, 0.0, 3.0, 4.0, -1.0, 9.0, -5.0, -6.0, -7.0, f32::NAN];
        let two = Conv2dShape { stride: [2, 2], ..Conv2dShape::new(1, 1, [2, 2]) };
        assert_eq!(max_pool2d(&x[..8], [2, 4], &two), [5.0, 9.0]);
        assert_eq!(max_pool2d(&x[..6], [2, 3], &two), [5.0]);
        assert_eq!(max_pool2d_grad(&x[..8], &[7.0, 8.0], [2, 4], &two), [0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0]);
        let y = max_pool2d(&x[8..], [2, 2], &two);
        assert!(y.len() == 1 && y[0].is_nan());
        assert_eq!(max_pool2d_grad(&x[8..], &[7.0], [2, 2], &two), [0.0, 0.0, 0.0, 7.0]);
        assert_eq!(max_pool2d_grad(&[2.0; 4], &[7.0], [2, 2], &two), [7.0, 0.0, 0.0, 0.0]);
        assert!(max_pool2d(&[], [2, 2], &two).is_empty());
        assert_eq!(max_pool2d_grad(&[1.0], &[], [1, 1], &two), [0.0]);
    }

    #[test]
    fn windows_agree_with_their_definition() {
        for (seed, padding, stride, dilation) in [(1, 0, 1, 1), (2, 1, 2, 1), (3, 2, 3, 2), (4, 1, 1, 2)] {
            let steps = Conv2dShape { stride: [stride; 2], dilation: [dilation; 2], ..Conv2dShape::new(1, 1, [3, 2]) };
            let (shape, size) = (Conv2dShape { padding: [[padding; 2]; 2], ..steps }, [7, 9]);
            let [height, width] = shape.out_size(size);
            let x: Vec<f32> = (0..3 * 63).map(|i| ((i * 7919 + seed * 13) % 997) as f32 - 500.0).collect();
            let highest = |i: usize| {
                let at = [i / width % height, i % width];
                let taps = (0..6).filter_map(|tap| shape.source(at, [tap / 2, tap % 2], size));
                let pixels = taps.map(|pixel| i / (height * width) * 63 + pixel);
                pixels.max_by(|a, b| x[*a].total_cmp(&x[*b])).unwrap()
            };
            let highest: Vec<_> = (0..3 * height * width).map(highest).collect();
            let y: Vec<_> = highest.iter().map(|i| x[*i]).collect();
            assert_eq!(max_pool2d(&x, size, &shape), y, "{shape:?}");
            let mut dx = vec![0.0; x.len()];
            highest.iter().zip(&y).for_each(|(i, dy)| dx[*i] += dy);
            assert_eq!(max_pool2d_grad(&x, &y, size, &shape), dx, "{shape:?}");
        }
    }
}
