//! NumPy's `.npy` format: a Python dictionary as header, then the data.
//!
//! Implemented here because existing crates need a parser for Python literals and an old zip crate.

use super::arrays::{Array, Number};
use std::collections::BTreeMap;

/// Parses a whole `.npy` file; the error describes the defect.
pub(crate) fn parse(bytes: &[u8]) -> Result<Array, String> {
    let (header, data) = split(bytes).ok_or("not a valid .npy file; it is damaged or of another format")?;
    let fields = fields_of(header).ok_or_else(|| format!("its header {header:?} cannot be read"))?;
    let field = |name: &str| fields.get(name).copied().ok_or_else(|| format!("its header has no {name:?}"));
    let descr = field("descr")?.trim_matches(['\'', '"']);
    let (number, is_big) = number_of(descr).ok_or_else(|| format!("its elements are {descr:?}, expected numbers"))?;
    let extents = field("shape")?.trim_matches(['(', ')', ' ']);
    let extents = extents.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    let shape: Option<Vec<usize>> = extents.map(|extent| extent.parse().ok()).collect();
    let mut shape = shape.ok_or("its shape cannot be read")?;
    let is_fortran = field("fortran_order")? == "True";
    if is_fortran {
        shape.reverse();
    }
    let array = Array::from_bytes(shape, number, is_big, data)?;
    Ok(if is_fortran { array.reversed() } else { array })
}

/// Splits header and data.
fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let rest = bytes.strip_prefix(b"\x93NUMPY")?;
    let (len, rest) = match rest.first()? {
        1 => (usize::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?)), rest.get(4..)?),
        2 | 3 => (u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?) as usize, rest.get(6..)?),
        _ => return None,
    };
    Some((std::str::from_utf8(rest.get(..len)?).ok()?.trim(), rest.get(len..)?))
}

/// Parses a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }` into keys and values.
fn fields_of(header: &str) -> Option<BTreeMap<&str, &str>> {
    let mut rest = header.strip_prefix('{')?.strip_suffix('}')?.trim();
    let mut fields = BTreeMap::new();
    while !rest.is_empty() {
        let (key, behind) = rest.split_once(':')?;
        let behind = behind.trim_start();
        let end =
            if behind.starts_with('(') { behind.find(')')? + 1 } else { behind.find(',').unwrap_or(behind.len()) };
        fields.insert(key.trim().trim_matches(['\'', '"']), behind[..end].trim());
        rest = behind[end..].trim_start_matches([',', ' ']);
    }
    Some(fields)
}

fn number_of(descr: &str) -> Option<(Number, bool)> {
    let (order, kind) = descr.split_at_checked(1)?;
    let number = match kind {
        "u1" => Number::U8,
        // Booleans are labels, but not pixels.
        "i1" | "b1" => Number::I8,
        "u2" => Number::U16,
        "i2" => Number::I16,
        "u4" => Number::U32,
        "i4" => Number::I32,
        "u8" => Number::U64,
        "i8" => Number::I64,
        "f2" => Number::F16,
        "f4" => Number::F32,
        "f8" => Number::F64,
        _ => return None,
    };
    matches!(order, "<" | ">" | "|" | "=").then_some((number, order == ">"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::arrays::Values;

    #[test]
    fn every_prefix_of_a_file_is_an_error() {
        let header = "{'descr': '>i2', 'fortran_order': False, 'shape': (2, 1), }\n";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0, 5, 255, 255]);
        assert_eq!(parse(&bytes).unwrap(), Array { shape: vec![2, 1], values: Values::Integers(vec![5.0, -1.0]) });
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len}");
        }
        let huge = String::from_utf8_lossy(&bytes[10..70]).replace("(2, 1)", "(9999999999, 9999999999, 99)");
        assert!(fields_of(huge.trim()).is_some());
    }
}
