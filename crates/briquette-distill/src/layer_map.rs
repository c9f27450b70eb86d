//! The mapping from student layers to teacher layers.

use briquette_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// The teacher layer that each student layer follows. Layers count from 0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerMap {
    /// Evenly spaced layers, ending at the last.
    ///
    /// Layer i of s follows layer `(i + 1) t / s - 1` of t: 3 of 6 layers follow 1, 3 and 5.
    #[default]
    Every,
    /// The first s layers.
    First,
    /// The last s layers.
    Last,
    /// An explicit teacher layer for each student layer.
    #[serde(untagged)]
    Explicit(Vec<usize>),
}

impl LayerMap {
    /// Returns the teacher layer for each student layer.
    ///
    /// # Errors
    /// Config: the student has more layers than the teacher, or a layer is out of range.
    pub fn resolve(&self, n_student: usize, n_teacher: usize) -> Result<Vec<usize>> {
        let all = 0..n_student;
        if n_student > n_teacher && !matches!(self, Self::Explicit(_)) {
            let message =
                format!("the student has {n_student} layers and the teacher {n_teacher}; list the layers one by one");
            return Err(Error::config(message).at("layers"));
        }
        match self {
            Self::Every => Ok(all.map(|layer| (layer + 1) * n_teacher / n_student - 1).collect()),
            Self::First => Ok(all.collect()),
            Self::Last => Ok(all.map(|layer| n_teacher - n_student + layer).collect()),
            Self::Explicit(layers) => {
                check_explicit(layers, n_student, n_teacher).map_err(|error| error.at("layers"))?;
                Ok(layers.clone())
            }
        }
    }
}

fn check_explicit(layers: &[usize], n_student: usize, n_teacher: usize) -> Result<()> {
    if layers.len() != n_student {
        let message = format!("found {} layers, expected one for each of the student's {n_student}", layers.len());
        return Err(Error::config(message));
    }
    match layers.iter().find(|&&layer| layer >= n_teacher) {
        Some(layer) => {
            Err(Error::config(format!("found layer {layer}, expected 0 to {}", n_teacher.saturating_sub(1))))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_map_resolves_a_teacher_layer_per_student_layer() {
        let of = |map: LayerMap| map.resolve(3, 6).unwrap();
        assert_eq!(of(LayerMap::Every), [1, 3, 5]);
        assert_eq!(of(LayerMap::First), [0, 1, 2]);
        assert_eq!(of(LayerMap::Last), [3, 4, 5]);
        assert_eq!(of(LayerMap::Explicit(vec![0, 5, 5])), [0, 5, 5]);
        assert_eq!(LayerMap::Every.resolve(6, 6).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(LayerMap::Every.resolve(0, 6).unwrap(), [0; 0]);
    }

    #[test]
    fn a_layer_out_of_range_is_refused_with_the_range() {
        let error = |map: LayerMap, s, t| map.resolve(s, t).unwrap_err().to_string();
        assert_eq!(error(LayerMap::Explicit(vec![0, 6]), 2, 6), "layers: found layer 6, expected 0 to 5");
        assert!(error(LayerMap::Explicit(vec![0]), 2, 6).contains("one for each of the student's 2"));
        assert!(error(LayerMap::Every, 7, 6).contains("7 layers and the teacher 6"));
    }
}
