//! Arithmetic on known values, such as computed shapes. Floats are rounded to f32, as where a model runs.

use super::layout::broadcast;
use briquette_formats::onnx::Constant;

/// Applies a function of one input; `None` for other operators.
pub(super) fn of_one(name: &str, x: &Constant) -> Option<Constant> {
    let function: fn(f64) -> f64 = match name {
        "Identity" => |x| x,
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Sqrt" => f64::sqrt,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Sin" => f64::sin,
        "Cos" => f64::cos,
        "Reciprocal" => f64::recip,
        "Sign" => |x| if x == 0.0 { 0.0 } else { x.signum() },
        "Not" => |x| f64::from(u8::from(x == 0.0)),
        "IsNaN" => |x| f64::from(u8::from(x.is_nan())),
        _ => return None,
    };
    let is_integer = x.is_integer || name == "IsNaN";
    let values = x.values.iter().map(|&x| rounded(function(x), is_integer)).collect();
    Some(Constant { values, is_integer, shape: x.shape.clone() })
}

/// Rounds a float to f32. Truncation depends on it, such as in buckets of distances.
pub(super) fn rounded(value: f64, is_integer: bool) -> f64 {
    if is_integer { value } else { f64::from(value as f32) }
}

/// Applies a function of two inputs, which broadcast; `None` for other operators.
pub(super) fn of_two(name: &str, a: &Constant, b: &Constant) -> Option<Constant> {
    let is_integer = a.is_integer && b.is_integer;
    let truth = |is_true: bool| f64::from(u8::from(is_true));
    let function = |a: f64, b: f64| {
        Some(match name {
            "Add" | "Sum" => a + b,
            "Sub" => a - b,
            "Mul" => a * b,
            "Div" if is_integer && b == 0.0 => return None,
            "Div" if is_integer => (a / b).trunc(),
            "Div" => a / b,
            "Mod" | "Fmod" if b == 0.0 => return None,
            "Mod" => a - b * (a / b).floor(),
            "Fmod" => a % b,
            "Pow" => a.powf(b),
            "Min" => a.min(b),
            "Max" => a.max(b),
            "Equal" => truth(a == b),
            "Greater" => truth(a > b),
            "GreaterOrEqual" => truth(a >= b),
            "Less" => truth(a < b),
            "LessOrEqual" => truth(a <= b),
            "And" => truth(a != 0.0 && b != 0.0),
            "Or" => truth(a != 0.0 || b != 0.0),
            "Xor" => truth((a != 0.0) != (b != 0.0)),
            _ => return None,
        })
    };
    let is_truth =
        matches!(name, "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "And" | "Or" | "Xor");
    let shape = broadcast(&a.shape, &b.shape)?;
    let (a, b) = (expanded(a, &shape)?, expanded(b, &shape)?);
    let is_integer = is_integer || is_truth;
    let value = |(&a, &b): (&f64, &f64)| Some(rounded(function(a, b)?, is_integer));
    let values: Option<Vec<f64>> = a.values.iter().zip(&b.values).map(value).collect();
    Some(Constant { shape, is_integer, values: values? })
}

/// Chooses between two inputs by a condition.
pub(super) fn chosen(condition: &Constant, a: &Constant, b: &Constant) -> Option<Constant> {
    let shape = broadcast(&broadcast(&condition.shape, &a.shape)?, &b.shape)?;
    let is_integer = a.is_integer && b.is_integer;
    let [condition, a, b] = [expanded(condition, &shape)?, expanded(a, &shape)?, expanded(b, &shape)?];
    let pairs = a.values.into_iter().zip(b.values);
    let values = condition.values.iter().zip(pairs).map(|(&is_first, (a, b))| if is_first == 0.0 { b } else { a });
    Some(Constant { values: values.collect(), shape, is_integer })
}

/// Repeats axes of extent 1; `None` if the result is large.
pub(super) fn expanded(x: &Constant, shape: &[usize]) -> Option<Constant> {
    if x.shape == shape {
        return Some(x.clone());
    }
    let offset = shape.len().checked_sub(x.shape.len())?;
    moved(x, shape, |index| {
        let own = index.get(offset..)?.iter().zip(&x.shape);
        Some(own.map(|(&at, &extent)| if extent == 1 { 0 } else { at }).collect())
    })
}

/// Fills a shape with elements of `x`, whose index follows from each index of the result; `None` if the result is large.
pub(super) fn moved(
    x: &Constant,
    shape: &[usize],
    source: impl Fn(&[usize]) -> Option<Vec<usize>>,
) -> Option<Constant> {
    let n = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
    (n <= super::importer::MAX_KNOWN).then_some(())?;
    let mut values = Vec::with_capacity(n);
    let mut index = vec![0; shape.len()];
    for _ in 0..n {
        values.push(*x.values.get(place_of(&source(&index)?, &x.shape)?)?);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Some(Constant { shape: shape.to_vec(), is_integer: x.is_integer, values })
}

/// The place of an element in row-major order.
fn place_of(index: &[usize], shape: &[usize]) -> Option<usize> {
    (index.len() == shape.len()).then_some(())?;
    index.iter().zip(shape).try_fold(0_usize, |place, (&at, &extent)| {
        (at < extent).then_some(())?;
        place.checked_mul(extent)?.checked_add(at)
    })
}

/// Joins constants along an axis.
pub(super) fn joined(parts: &[Constant], axis: usize) -> Option<Constant> {
    let first = parts.first()?;
    let mut shape = first.shape.clone();
    *shape.get_mut(axis)? = parts.iter().map(|part| part.shape.get(axis).copied()).sum::<Option<usize>>()?;
    let outer: usize = first.shape[..axis].iter().product();
    let mut values = Vec::new();
    for at in 0..outer {
        for part in parts {
            let n = part.values.len().checked_div(outer)?;
            values.extend(part.values.get(at * n..(at + 1) * n)?);
        }
    }
    let n = shape.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))?;
    (values.len() == n).then_some(Constant { shape, is_integer: first.is_integer, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integers(shape: &[usize], values: &[i32]) -> Constant {
        Constant { shape: shape.to_vec(), is_integer: true, values: values.iter().map(|&value| value.into()).collect() }
    }

    #[test]
    fn functions_broadcast_and_integers_are_divided_as_integers() {
        let (a, b) = (integers(&[2, 1], &[7, -7]), integers(&[2], &[2, 3]));
        assert_eq!(of_two("Div", &a, &b).unwrap(), integers(&[2, 2], &[3, 2, -3, -2]));
        assert_eq!(of_two("Mod", &a, &b).unwrap(), integers(&[2, 2], &[1, 1, 1, 2]));
        assert_eq!(of_two("Div", &a, &integers(&[], &[0])), None);
        assert_eq!(of_two("Equal", &b, &integers(&[], &[3])).unwrap(), integers(&[2], &[0, 1]));
        assert_eq!(of_two("Add", &integers(&[2], &[1, 2]), &integers(&[3], &[1, 2, 3])), None);
        assert_eq!(chosen(&integers(&[2], &[1, 0]), &b, &integers(&[], &[9])).unwrap(), integers(&[2], &[2, 9]));
        assert_eq!(of_one("Not", &integers(&[2], &[0, 5])).unwrap(), integers(&[2], &[1, 0]));
        assert_eq!(of_one("Erf", &b), None);
    }

    #[test]
    fn elements_are_moved_and_joined() {
        let x = integers(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let turned = moved(&x, &[3, 2], |index| Some(vec![index[1], index[0]])).unwrap();
        assert_eq!(turned, integers(&[3, 2], &[1, 4, 2, 5, 3, 6]));
        assert_eq!(
            joined(&[x.clone(), integers(&[2, 1], &[9, 8])], 1).unwrap(),
            integers(&[2, 4], &[1, 2, 3, 9, 4, 5, 6, 8])
        );
        assert_eq!(joined(&[x.clone(), integers(&[3], &[9, 8, 7])], 0), None);
        assert_eq!(expanded(&integers(&[1], &[4]), &[2, 2]).unwrap(), integers(&[2, 2], &[4; 4]));
        assert_eq!(expanded(&integers(&[1], &[4]), &[1 << 20, 1 << 20, usize::MAX]), None);
        assert_eq!(moved(&x, &[1], |_| Some(vec![2, 0])), None);
    }
}
