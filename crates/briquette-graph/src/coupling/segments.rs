//! Matches the axes of a reshape by their products.

/// Axes of the input and of the output that hold the same elements.
pub(super) type Segment = (Vec<usize>, Vec<usize>);

/// The axes that belong together: `[2, 3, 4] → [6, 4]` gives `([0, 1], [0])` and `([2], [1])`. Axes of extent 1 are left out.
pub(super) fn segments(from: &[usize], to: &[usize]) -> Vec<Segment> {
    let real = |shape: &[usize]| -> Vec<usize> { (0..shape.len()).filter(|&axis| shape[axis] != 1).collect() };
    let (mut inputs, mut outputs) = (real(from).into_iter().peekable(), real(to).into_iter().peekable());
    let mut found = Vec::new();
    while inputs.peek().is_some() || outputs.peek().is_some() {
        let (mut segment, mut n_in, mut n_out) = (Segment::default(), 1_usize, 1_usize);
        loop {
            let takes_input =
                outputs.peek().is_none() || inputs.peek().is_some() && (segment.0.is_empty() || n_in < n_out);
            let (side, axes, n, shape) = match takes_input {
                true => (&mut inputs, &mut segment.0, &mut n_in, from),
                false => (&mut outputs, &mut segment.1, &mut n_out, to),
            };
            let Some(axis) = side.next() else { break };
            axes.push(axis);
            *n = n.saturating_mul(shape[axis]);
            if n_in == n_out {
                break;
            }
        }
        found.push(segment);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::segments;

    #[test]
    fn axes_are_matched_by_their_products() {
        let cases: [(&[usize], &[usize], &str); 7] = [
            (&[2, 3, 4], &[6, 4], "[([0, 1], [0]), ([2], [1])]"),
            (&[1, 128, 384], &[1, 128, 12, 32], "[([1], [1]), ([2], [2, 3])]"),
            (&[1, 12, 128, 32], &[12, 128, 32], "[([1], [0]), ([2], [1]), ([3], [2])]"),
            (&[1, 14, 14, 8], &[1, 2, 7, 2, 7, 8], "[([1], [1, 2]), ([2], [3, 4]), ([3], [5])]"),
            (&[4, 6], &[6, 4], "[([0, 1], [0, 1])]"),
            (&[5], &[1, 5, 1], "[([0], [1])]"),
            (&[1], &[1, 1], "[]"),
        ];
        for (from, to, expected) in cases {
            assert_eq!(format!("{:?}", segments(from, to)), expected, "{from:?} {to:?}");
        }
    }
}
