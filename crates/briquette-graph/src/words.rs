//! Operations with their settings, as reports print them.

use crate::op::{Composite, ConvSettings, Op, Primitive};

/// An operation in words, such as `convolution, stride 2` or `attention, 9 heads, 3 of keys, causal`.
pub fn words(op: &Op) -> String {
    let settings = match op {
        Op::Primitive(primitive) => of_primitive(primitive),
        Op::Composite(composite) => of_composite(composite),
    };
    std::iter::once(op.name().to_string()).chain(settings).collect::<Vec<_>>().join(", ")
}

fn of_primitive(primitive: &Primitive) -> Vec<String> {
    match primitive {
        Primitive::Conv(settings) => of_convolution(settings),
        Primitive::Pool(window) => {
            let kind = format!("{:?}", window.kind).to_lowercase();
            vec![kind, format!("window {}", extents(&window.size)), format!("stride {}", extents(&window.stride))]
        }
        Primitive::Transpose(permutation) => vec![format!("{permutation:?}")],
        Primitive::PerChannel { axis }
        | Primitive::Softmax { axis }
        | Primitive::CumulativeSum { axis }
        | Primitive::Concat { axis } => vec![format!("axis {axis}")],
        Primitive::TopIndices { axis, n, .. } => vec![format!("axis {axis}"), format!("top {n}")],
        Primitive::Split { axis, sizes } => vec![format!("axis {axis}"), format!("{} parts", sizes.len())],
        Primitive::Slice { axis, start, len } => vec![format!("axis {axis}"), format!("{start} to {}", start + len)],
        Primitive::Reduce { axes, kind } => vec![format!("{kind:?}").to_lowercase(), format!("axes {axes:?}")],
        Primitive::Scale(factor) => vec![factor.to_string()],
        Primitive::Number { number, .. } => vec![number.to_string()],
        Primitive::FakeQuantize(grid) => vec![format!("scale {}", grid.scale), format!("zero {}", grid.zero)],
        Primitive::PadSame { size, stride } => {
            vec![format!("for a window {}", extents(size)), format!("stride {}", extents(stride))]
        }
        Primitive::Resize(factor) => vec![format!("factor {factor}")],
        Primitive::Route(routing) => vec![format!("top {}", routing.top_k)],
        _ => Vec::new(),
    }
}

fn of_convolution(settings: &ConvSettings) -> Vec<String> {
    let mut found = Vec::new();
    for (what, sizes, usual) in
        [("stride", &settings.stride, 1), ("padding", &settings.padding, 0), ("dilation", &settings.dilation, 1)]
    {
        if sizes.iter().any(|&size| size != usual) {
            found.push(format!("{what} {}", extents(sizes)));
        }
    }
    if settings.groups > 1 {
        found.push(format!("{} groups", settings.groups));
    }
    found
}

fn of_composite(composite: &Composite) -> Vec<String> {
    match composite {
        Composite::Attention(attention) => {
            let heads = [(attention.heads, "heads"), (attention.kv_heads, "of keys")];
            let n_shown = if attention.heads == attention.kv_heads { 1 } else { 2 };
            let mut found: Vec<String> = heads.iter().take(n_shown).map(|(n, what)| format!("{n} {what}")).collect();
            found.extend(attention.causal.then(|| "causal".into()));
            found.extend(attention.window.map(|window| format!("window {window}")));
            found.extend(attention.rotary.is_some().then(|| "rotary".into()));
            found
        }
        Composite::Gate(function) => vec![function.name().into()],
        Composite::GroupNorm { groups, .. } => vec![format!("{groups} groups")],
        Composite::Experts { routing, .. } | Composite::SeparateExperts { routing, .. } => {
            vec![format!("top {}", routing.top_k)]
        }
        _ => Vec::new(),
    }
}

/// `3` for `[3, 3]`, and `3x1` for `[3, 1]`.
fn extents(sizes: &[usize]) -> String {
    match sizes {
        [first, rest @ ..] if rest.iter().all(|size| size == first) => first.to_string(),
        _ => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::words;
    use crate::op::{Attention, Composite, ConvSettings, PoolWindow, Primitive, Reduction};

    #[test]
    fn settings_that_differ_from_the_usual_ones_are_named() {
        assert_eq!(words(&Primitive::Conv(ConvSettings::square(1, 0)).into()), "convolution");
        let grouped = ConvSettings::square(2, 1).with_groups(32);
        assert_eq!(words(&Primitive::Conv(grouped).into()), "convolution, stride 2, padding 1, 32 groups");
        let pool = PoolWindow { size: vec![3, 1], ..PoolWindow::square(Reduction::Max, 3, 2, 0) };
        assert_eq!(words(&Primitive::Pool(pool).into()), "pool, max, window 3x1, stride 2");
        let shared = Attention { kv_heads: 3, causal: true, ..Attention::full(9) };
        assert_eq!(words(&Composite::Attention(shared).into()), "attention, 9 heads, 3 of keys, causal");
        assert_eq!(words(&Composite::Attention(Attention::full(12)).into()), "attention, 12 heads");
    }
}
