//! Sorts names, of which there may be millions.

/// Names that are sorted in one step, so that their keys fit the cache of a core.
const CHUNK: usize = 1 << 15;

/// Names in at most this many sorted runs are merged. Files of Briquette have one run per element size.
const MAX_RUNS: usize = 4;

/// Returns the indices of `n` names in the order of the names. The sort is stable; `n` must be below 2^32.
///
/// It needs four bytes per name plus a megabyte. Large sets are divided by the first byte in which names
/// differ, again and again. Small sets are compared by a copy of the bytes from there on, because looking up
/// whole names takes most of the time of a plain sort.
pub fn order<'a>(n: usize, name: impl Fn(usize) -> &'a str) -> Vec<u32> {
    let name = |index: &u32| name(*index as usize);
    let mut order: Vec<u32> = (0..n).map(|index| index as u32).collect();
    if order.windows(2).filter(|pair| name(&pair[0]) > name(&pair[1])).nth(MAX_RUNS).is_none() {
        // Sorted runs are merged. Equal names keep their order.
        order.sort_by(|a, b| name(a).cmp(name(b)));
        return order;
    }
    let mut keyed: Vec<(u128, u32)> = Vec::with_capacity(n.min(CHUNK));
    let mut unsorted = vec![(0..n, 0)];
    while let Some((range, n_known)) = unsorted.pop() {
        let some = &mut order[range.clone()];
        let Some(first) = some.first().map(|index| name(index).as_bytes()) else { continue };
        let n_alike =
            |n: usize, index: &u32| n_known + n_shared(&first[n_known..n], &name(index).as_bytes()[n_known..]);
        let n_shared = some.iter().fold(first.len(), n_alike);
        if some.len() > CHUNK {
            let ends =
                divide(some, |index| name(index).as_bytes().get(n_shared).map_or(0, |byte| 1 + usize::from(*byte)));
            // Names that end here are all equal.
            some[..ends[0]].sort_unstable();
            let parts = ends.windows(2).filter(|ends| ends[0] < ends[1]);
            unsorted.extend(parts.map(|ends| (range.start + ends[0]..range.start + ends[1], n_shared)));
            continue;
        }
        keyed.clear();
        keyed.extend(some.iter().map(|index| (key(&name(index).as_bytes()[n_shared..]), *index)));
        keyed.sort_unstable_by(|(a_key, a), (b_key, b)| {
            a_key.cmp(b_key).then_with(|| name(a).cmp(name(b))).then(a.cmp(b))
        });
        some.iter_mut().zip(&keyed).for_each(|(place, (_, index))| *place = *index);
    }
    order
}

/// The number of kinds in [`divide`]: the end of a name, or its next byte.
const N_KINDS: usize = 257;

/// Groups items by kind, in the order of kinds. Returns the end of each kind.
fn divide(items: &mut [u32], kind: impl Fn(&u32) -> usize) -> [usize; N_KINDS] {
    let mut ends = [0; N_KINDS];
    items.iter().for_each(|item| ends[kind(item)] += 1);
    (1..N_KINDS).for_each(|i| ends[i] += ends[i - 1]);
    let mut next = [0; N_KINDS];
    next[1..].copy_from_slice(&ends[..N_KINDS - 1]);
    for this in 0..N_KINDS {
        while next[this] < ends[this] {
            let found = kind(&items[next[this]]);
            items.swap(next[this], next[found]);
            next[found] += 1;
        }
    }
    ends
}

/// Returns the length of the common prefix of two texts.
fn n_shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the first bytes of a text as a number that sorts in the same order.
fn key(text: &[u8]) -> u128 {
    let mut bytes = [0; size_of::<u128>()];
    let n = text.len().min(bytes.len());
    bytes[..n].copy_from_slice(&text[..n]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain_order(names: &[String]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..names.len() as u32).collect();
        order.sort_by_key(|&index| &names[index as usize]);
        order
    }

    #[test]
    fn the_order_equals_that_of_a_stable_sort() {
        let many = |n: usize, name: fn(usize) -> String| (0..n).map(name).collect::<Vec<String>>();
        let odd = ["", "a", "a\0", "a\0\0b", "é", "a.b", "a.", "b", "", "a", "\u{10ffff}", "aaaaaaaaaaaaaaaaaaaaaaaab"];
        let cases = [
            Vec::new(),
            odd.map(String::from).to_vec(),
            many(3 * CHUNK + 77, |i| format!("layers.{}.{}.weight", i / 4, ["qkv", "out", "fc1", "fc2"][i % 4])),
            many(2 * CHUNK, |i| format!("{}.the.same.long.beginning.{}", i % 7, i * 7919 % 1000)),
            many(CHUNK + 1, |_| "same".into()),
            many(3 * CHUNK, |i| "ab".repeat(i * 7919 % 40)),
            many(2 * CHUNK, |i| format!("é{}", char::from((i * 31 % 256) as u8))),
            many(1000, |i| format!("{i:04}")),
        ];
        for names in cases {
            assert_eq!(order(names.len(), |index| &names[index]), plain_order(&names), "{:?}", names.first());
        }
    }
}
