//! Resizing of space.

use super::attributes::{float, int, ints, text};
use super::importer::{Importer, MAX_HELD};
use super::inputs::NodeInputs;
use super::item::{Item, known};
use super::ranges::taken;
use crate::op::Primitive;
use briquette_formats::onnx::{Constant, Node};

/// Imports a resize of space. Equal integer factors of nearest neighbours are a primitive; others are products with a matrix.
pub(super) fn resize(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let shape = to.shape(given.get(0)?)?;
    let is_upsample = given.node.op_type == "Upsample";
    let position = if is_upsample { 1 } else { 2 };
    let scales = given.get(position).and_then(|item| to.values(item)).map(|scales| scales.values);
    let scales = scales.filter(|scales| scales.len() == shape.len());
    let sizes = given.integers(to, 3).filter(|sizes| sizes.len() == shape.len());
    let target: Vec<usize> = match (sizes, &scales) {
        (Some(sizes), _) => sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?,
        (None, Some(scales)) => {
            shape.iter().zip(scales).map(|(&extent, scale)| (extent as f64 * scale) as usize).collect()
        }
        _ => to.declared_shape(given.node.outputs.first()?)?,
    };
    (target.len() == shape.len() && target.get(..2)? == shape.get(..2)?).then_some(())?;
    if to.runs {
        // A target can follow from several scales.
        let are_known = scales.is_some() || !given.has(position) || given.has(3);
        are_known.then_some(())?;
        let axes = (2..shape.len()).map(|axis| {
            let scale = scales.as_ref().map_or(target[axis] as f64 / shape[axis] as f64, |scales| scales[axis]);
            ResizedAxis { axis, extent: shape[axis], target: target[axis], scale }
        });
        return Some(vec![resized(to, given, &axes.collect::<Vec<_>>())?]);
    }
    let factor = target.get(2)?.checked_div(shape[2])?;
    let is_nearest = text(given.node, "mode", "nearest") == "nearest"
        && text(given.node, "coordinate_transformation_mode", "half_pixel") != "align_corners";
    let is_factor = factor > 0 && (2..shape.len()).all(|axis| shape[axis].checked_mul(factor) == Some(target[axis]));
    let op = match is_nearest && is_factor {
        true => Primitive::Resize(factor),
        false => Primitive::Spatial { name: "Resize".into(), space: target[2..].to_vec() },
    };
    let x = to.operand(given.get(0)?)?;
    Some(vec![Item::Value(to.emit(op, &[x])?)])
}

/// The sizes of an axis before and after a resize.
struct ResizedAxis {
    axis: usize,
    extent: usize,
    target: usize,
    scale: f64,
}

/// Resizes one axis after another.
fn resized(to: &mut Importer, given: &NodeInputs, axes: &[ResizedAxis]) -> Option<Item> {
    let node = given.node;
    let is_plain = int(node, "antialias", 0) == 0
        && int(node, "exclude_outside", 0) == 0
        && ints(node, "axes").is_none()
        && text(node, "keep_aspect_ratio_policy", "stretch") == "stretch";
    is_plain.then_some(())?;
    axes.iter().all(|axis| axis.target <= MAX_HELD).then_some(())?;
    let mut item = given.get(0)?.clone();
    let rank = to.shape(&item)?.len();
    if text(node, "mode", "nearest") == "nearest" {
        let places = axes.iter().map(|axis| axis.nearest(node)).collect::<Option<Vec<_>>>()?;
        if let Some(factor) = common_factor(axes, &places) {
            let x = to.operand(&item)?;
            return Some(Item::Value(to.emit(Primitive::Resize(factor), &[x])?));
        }
        for (axis, places) in axes.iter().zip(&places) {
            item = taken(to, &item, axis.axis, places)?;
        }
        return Some(item);
    }
    for axis in axes.iter().filter(|axis| axis.extent != axis.target) {
        let is_last = axis.axis + 1 == rank;
        (is_last || axis.axis + 2 == rank).then_some(())?;
        let matrix = axis.matrix(node, is_last)?;
        let operands = [to.operand(&item)?, to.operand(&matrix)?];
        let operands = if is_last { operands } else { [operands[1], operands[0]] };
        item = Item::Value(to.emit(Primitive::MatMul { transpose_b: false }, &operands)?);
    }
    Some(item)
}

/// The factor by which all axes repeat their elements.
fn common_factor(axes: &[ResizedAxis], places: &[Vec<i64>]) -> Option<usize> {
    let factor = axes.first()?.target.checked_div(axes.first()?.extent).filter(|factor| *factor > 0)?;
    let repeats = |(axis, places): (&ResizedAxis, &Vec<i64>)| {
        axis.extent.checked_mul(factor) == Some(axis.target)
            && places.iter().enumerate().all(|(at, place)| i64::try_from(at / factor) == Ok(*place))
    };
    axes.iter().zip(places).all(repeats).then_some(factor)
}

impl ResizedAxis {
    /// The place in the given axis that an element of the result is computed at.
    fn source(&self, node: &Node, at: usize) -> Option<f64> {
        let (x, extent, target) = (at as f64, self.extent as f64, self.target as f64);
        Some(match text(node, "coordinate_transformation_mode", "half_pixel") {
            "pytorch_half_pixel" if self.target == 1 => 0.0,
            "half_pixel" | "pytorch_half_pixel" => (x + 0.5) / self.scale - 0.5,
            "align_corners" if self.target == 1 => 0.0,
            "align_corners" => x * (extent - 1.0) / (target - 1.0),
            "asymmetric" => x / self.scale,
            _ => return None,
        })
    }

    /// The element of the given axis that each element of the result repeats.
    fn nearest(&self, node: &Node) -> Option<Vec<i64>> {
        let last = i64::try_from(self.extent).ok()? - 1;
        let place = |at: usize| {
            let x = self.source(node, at)?;
            let rounded = match text(node, "nearest_mode", "round_prefer_floor") {
                "round_prefer_floor" => (x - 0.5).ceil(),
                "round_prefer_ceil" => (x + 0.5).floor(),
                "floor" => x.floor(),
                "ceil" => x.ceil(),
                _ => return None,
            };
            Some((rounded as i64).clamp(0, last))
        };
        (0..self.target).map(place).collect()
    }

    /// The matrix of an interpolation: `[given, result]` for products from the right, else `[result, given]`.
    fn matrix(&self, node: &Node, is_right: bool) -> Option<Item> {
        let n = self.extent.checked_mul(self.target)?;
        (n <= MAX_HELD).then_some(())?;
        let mut values = vec![0.0; n];
        for at in 0..self.target {
            let x = self.source(node, at)?;
            let (first, shares) = match text(node, "mode", "nearest") {
                "linear" => {
                    let x = x.clamp(0.0, self.extent as f64 - 1.0);
                    (x.floor() as i64, vec![1.0 - x.fract(), x.fract()])
                }
                "cubic" => (x.floor() as i64 - 1, cubic(x - x.floor(), float(node, "cubic_coeff_a", -0.75)).to_vec()),
                _ => return None,
            };
            for (place, share) in (first..).zip(shares) {
                let place = usize::try_from(place.max(0)).ok()?.min(self.extent - 1);
                let index = if is_right { place * self.target + at } else { at * self.extent + place };
                *values.get_mut(index)? += share;
            }
        }
        let shape = if is_right { vec![self.extent, self.target] } else { vec![self.target, self.extent] };
        Some(known(Constant { shape, is_integer: false, values }))
    }
}

/// The shares of four neighbours in a cubic interpolation.
fn cubic(x: f64, a: f64) -> [f64; 4] {
    let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    [far(x + 1.0), near(x), near(1.0 - x), far(2.0 - x)]
}
