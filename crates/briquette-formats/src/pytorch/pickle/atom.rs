//! Opcodes that push one value.

use super::refusal::{Refusal, damaged};
use super::value::Value;
use crate::pytorch::bytes::Bytes;

/// Runs the opcodes that push one value: numbers, strings, constants.
pub(super) fn atom(code: u8, rest: &mut Bytes) -> Result<Option<Value>, Refusal> {
    let length = match code {
        b'X' | b'B' | b'T' => rest.u32().map(u64::from),
        0x8c | b'U' | b'C' | 0x8a => rest.u8().map(u64::from),
        0x8d | 0x8e => rest.u64(),
        _ => None,
    };
    let length = length.and_then(|length| usize::try_from(length).ok());
    let value = match code {
        b'N' => Some(Value::Other),
        0x88 | 0x89 => Some(Value::Bool(code == 0x88)),
        b'K' => rest.u8().map(|n| Value::Int(n.into())),
        b'M' => rest.u16().map(|n| Value::Int(n.into())),
        b'J' => rest.i32().map(|n| Value::Int(n.into())),
        b'G' => rest.u64().map(|_| Value::Other),
        0x8a => length.and_then(|length| rest.take(length)).map(|bytes| long(bytes).map_or(Value::Other, Value::Int)),
        b'X' | 0x8c | 0x8d | b'U' | b'T' => {
            let text = length.and_then(|length| std::str::from_utf8(rest.take(length)?).ok());
            text.map(|text| Value::Text(text.into()))
        }
        b'B' | b'C' | 0x8e => length.and_then(|length| rest.take(length)).map(|_| Value::Other),
        _ => return Ok(None),
    };
    value.map(Some).ok_or_else(damaged)
}

/// Reads an integer in two's complement of up to 8 bytes.
fn long(bytes: &[u8]) -> Option<i64> {
    let fill = if bytes.last().is_some_and(|&last| last > 0x7f) { 0xff } else { 0 };
    let mut all = [fill; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(all))
}
