//! `Einsum` of two operands: a product of matrices between reorders of axes.

use super::attributes::text;
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use super::layout::reshaped;
use crate::op::{Primitive, Reduction};

/// An operand with a letter for each axis.
struct Lettered {
    item: Item,
    letters: Vec<char>,
}

/// Imports an equation of two operands, without repeated letters in one operand and without dots.
pub(super) fn einsum(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let equation: String = text(given.node, "equation", "").split_whitespace().collect();
    let (inputs, output) = equation.split_once("->")?;
    let (a, b) = inputs.split_once(',')?;
    let output: Vec<char> = output.chars().collect();
    let [a, b] = [(a, 0), (b, 1)].map(|(letters, at)| {
        Some(Lettered { item: given.get(at)?.clone(), letters: distinct(letters.chars().collect())? })
    });
    let (mut a, mut b) = (a?, b?);
    (given.items.len() == 2 && distinct(output.clone()).is_some()).then_some(())?;
    a.summed(to, |letter| b.letters.contains(&letter) || output.contains(&letter))?;
    b.summed(to, |letter| a.letters.contains(&letter) || output.contains(&letter))?;
    let shared = |letter: &char| a.letters.contains(letter) && b.letters.contains(letter);
    let of = |keep: &dyn Fn(&char) -> bool, letters: &[char]| letters.iter().copied().filter(keep).collect::<Vec<_>>();
    let batch = of(&|letter| shared(letter), &output);
    let inner = of(&|letter| shared(letter) && !output.contains(letter), &a.letters);
    let left = of(&|letter| !shared(letter), &a.letters);
    let right = of(&|letter| !shared(letter), &b.letters);
    let extents = [a.extents(to, &batch)?, a.extents(to, &left)?, b.extents(to, &right)?].concat();
    let a = a.as_matrices(to, [&batch, &left, &inner])?;
    let b = b.as_matrices(to, [&batch, &inner, &right])?;
    let operands = [to.operand(&a)?, to.operand(&b)?];
    let product = Item::Value(to.emit(Primitive::MatMul { transpose_b: false }, &operands)?);
    let found = Lettered { item: reshaped(to, &product, extents)?, letters: [batch, left, right].concat() };
    Some(vec![found.ordered(to, &output)?])
}

/// Returns the letters if each is a letter and occurs once.
fn distinct(letters: Vec<char>) -> Option<Vec<char>> {
    let is_new = |at: usize| letters[at].is_alphabetic() && !letters[..at].contains(&letters[at]);
    (0..letters.len()).all(is_new).then_some(letters)
}

impl Lettered {
    /// Sums over the axes whose letters are not kept.
    fn summed(&mut self, to: &mut Importer, keeps: impl Fn(char) -> bool) -> Option<()> {
        let shape = to.shape(&self.item)?;
        (shape.len() == self.letters.len()).then_some(())?;
        let axes: Vec<usize> = (0..shape.len()).filter(|&axis| !keeps(self.letters[axis])).collect();
        if axes.is_empty() {
            return Some(());
        }
        let x = to.operand(&self.item)?;
        let sum = Item::Value(to.emit(Primitive::Reduce { axes, kind: Reduction::Sum }, &[x])?);
        let rest = shape.into_iter().zip(&self.letters).filter(|(_, letter)| keeps(**letter));
        self.item = reshaped(to, &sum, rest.map(|(extent, _)| extent).collect())?;
        self.letters.retain(|letter| keeps(*letter));
        Some(())
    }

    fn extents(&self, to: &Importer, letters: &[char]) -> Option<Vec<usize>> {
        let shape = to.shape(&self.item)?;
        letters.iter().map(|letter| Some(shape[self.letters.iter().position(|own| own == letter)?])).collect()
    }

    /// Reorders the axes.
    fn ordered(&self, to: &mut Importer, letters: &[char]) -> Option<Item> {
        let order: Option<Vec<usize>> =
            letters.iter().map(|letter| self.letters.iter().position(|own| own == letter)).collect();
        let order = order.filter(|order| order.len() == self.letters.len())?;
        if order.is_sorted() {
            return Some(self.item.clone());
        }
        let x = to.operand(&self.item)?;
        Some(Item::Value(to.emit(Primitive::Transpose(order), &[x])?))
    }

    /// Reorders the axes, and joins each group of them to one.
    fn as_matrices(&self, to: &mut Importer, groups: [&[char]; 3]) -> Option<Item> {
        let mut shape = Vec::new();
        for group in groups {
            shape.push(self.extents(to, group)?.iter().product());
        }
        let item = self.ordered(to, &groups.concat())?;
        reshaped(to, &item, shape)
    }
}
