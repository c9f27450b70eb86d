//! Shapes of tensors.

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

/// The extents of a tensor, outermost first; empty for a scalar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Shape(pub Vec<usize>);

/// The largest rank of a tensor in a file.
pub const MAX_RANK: usize = 64;

impl<'de> Deserialize<'de> for Shape {
    /// Refuses more than [`MAX_RANK`] extents, because an untrusted file may list millions.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Extents;
        impl<'de> Visitor<'de> for Extents {
            type Value = Shape;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(f, "a shape of up to {MAX_RANK} extents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut extents: A) -> Result<Shape, A::Error> {
                let (mut found, mut n) = ([0; MAX_RANK], 0);
                while let Some(extent) = extents.next_element()? {
                    if n == MAX_RANK {
                        return Err(serde::de::Error::custom(format!("a shape has more than {MAX_RANK} extents")));
                    }
                    found[n] = extent;
                    n += 1;
                }
                // There may be millions of shapes, so the copy has no spare capacity.
                Ok(Shape(found[..n].to_vec()))
            }
        }
        deserializer.deserialize_seq(Extents)
    }
}

impl Shape {
    /// Returns the product of the extents, or `None` on overflow. A scalar has one element.
    pub fn n_elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1_usize, |n, &extent| n.checked_mul(extent))
    }

    /// Returns the number of extents.
    pub fn rank(&self) -> usize {
        self.0.len()
    }
}

impl From<&[usize]> for Shape {
    fn from(extents: &[usize]) -> Self {
        Self(extents.to_vec())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let extents: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", extents.join(", "))
    }
}
