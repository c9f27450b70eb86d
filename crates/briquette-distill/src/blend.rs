//! Blends: several losses as one number.

use crate::loss::{attention, embedding, hidden, labels, logits};
use crate::{Custom, LayerMap, Outputs, Projections, Targets, Wanted};
use briquette_core::{Error, Result};
use burn::tensor::Tensor;

/// How logits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Divergence {
    /// [`logits::kl`].
    #[default]
    Kl,
    /// [`logits::jensen_shannon`] with this β, from 0 to 1.
    JensenShannon(f32),
    /// [`logits::mse`], which has no temperature.
    Mse,
}

/// A distance between two vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distance {
    /// [`hidden::mse`].
    #[default]
    Mse,
    /// [`hidden::cosine`].
    Cosine,
}

/// The attention data that a loss compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// [`attention::maps`].
    Maps,
    /// [`attention::values`], split into this many heads.
    Values(usize),
}

/// How embeddings are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Match {
    /// [`embedding::cosine`].
    #[default]
    Cosine,
    /// [`embedding::similarity`].
    Similarity,
}

/// A loss.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// The teacher's logits, at a temperature unless the comparison has none.
    Logits(Divergence, f32),
    /// Labels, with label smoothing.
    Labels(f32),
    /// Hidden states of paired layers; the mean over the layers.
    Hidden(Distance, LayerMap),
    /// Attention of paired layers; the mean over the layers.
    Attention(Relation, LayerMap),
    /// Embeddings.
    Embedding(Match),
    /// A custom loss.
    Custom(Custom),
}

impl Loss {
    /// Creates a custom loss: see [`Custom::new`].
    pub fn custom(
        name: &str,
        compute: impl Fn(&Outputs, Targets) -> Result<Tensor<1>> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(Custom::new(name, compute))
    }

    /// Returns this loss with a weight.
    pub fn times(self, weight: f64) -> Term {
        Term { loss: self, weight }
    }

    /// Returns the name in recipes and reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Logits(..) => "logits",
            Self::Labels(_) => "labels",
            Self::Hidden(..) => "hidden",
            Self::Attention(..) => "attention",
            Self::Embedding(_) => "embedding",
            Self::Custom(custom) => custom.name(),
        }
    }

    /// Returns whether the loss needs a teacher. A custom loss requests its teacher by itself.
    pub fn needs_teacher(&self) -> bool {
        !matches!(self, Self::Labels(_) | Self::Custom(_))
    }

    fn check(&self) -> Result<()> {
        let message = match self {
            Self::Logits(_, t) if !(t.is_finite() && *t > 0.0) => format!("temperature: found {t}, expected above 0"),
            Self::Logits(Divergence::JensenShannon(beta), _) if !(0.0..=1.0).contains(beta) => {
                format!("beta: found {beta}, expected 0 to 1")
            }
            Self::Labels(s) if !(0.0..1.0).contains(s) => format!("smoothing: found {s}, expected 0 to below 1"),
            Self::Attention(Relation::Values(0), _) => "heads: found 0, expected at least 1".into(),
            Self::Custom(custom) if custom.name().trim().is_empty() => "a custom loss needs a name".into(),
            _ => return Ok(()),
        };
        Err(Error::config(message).at(format_args!("loss {:?}", self.name())))
    }
}

/// A loss and its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// The loss.
    pub loss: Loss,
    /// The weight.
    pub weight: f64,
}

/// The weighted sum of losses, `Σ weight · loss`.
#[derive(Debug, Clone, PartialEq)]
pub struct Blend(Vec<Term>);

/// The total loss of a batch, and its terms.
#[derive(Debug, Clone)]
pub struct Blended {
    /// `Σ weight · loss`.
    pub total: Tensor<1>,
    /// Each unweighted loss, in the order of the blend.
    pub terms: Vec<Tensor<1>>,
}

impl Blend {
    /// Creates a blend of at least one loss.
    ///
    /// # Errors
    /// Config: there is no loss, a weight is negative or not finite, or all weights are 0; a temperature is not
    /// above 0, or a smoothing is out of range.
    pub fn new(terms: Vec<Term>) -> Result<Self> {
        for term in &terms {
            term.loss.check()?;
            if !(term.weight.is_finite() && term.weight >= 0.0) {
                let message = format!("weight: found {}, expected a finite number of at least 0", term.weight);
                return Err(Error::config(message).at(format_args!("loss {:?}", term.loss.name())));
            }
        }
        if terms.iter().map(|term| term.weight).sum::<f64>() <= 0.0 {
            return Err(Error::config("loss: the weights sum to 0, so nothing would be learned; raise one"));
        }
        Ok(Self(terms))
    }

    /// Returns the losses with their weights.
    pub fn terms(&self) -> &[Term] {
        &self.0
    }

    /// Returns whether any loss needs a teacher.
    pub fn needs_teacher(&self) -> bool {
        self.0.iter().any(|term| term.loss.needs_teacher())
    }

    /// Returns whether any loss needs labels.
    pub fn needs_labels(&self) -> bool {
        self.0.iter().any(|term| matches!(term.loss, Loss::Labels(_)))
    }

    /// Returns the outputs that networks must provide.
    pub fn wanted(&self) -> Wanted {
        self.0.iter().fold(Wanted::default(), |wanted, term| match &term.loss {
            Loss::Hidden(..) => Wanted { hidden: true, ..wanted },
            Loss::Attention(Relation::Maps, _) => Wanted { attention: true, ..wanted },
            Loss::Attention(Relation::Values(_), _) => Wanted { values: true, ..wanted },
            Loss::Custom(custom) => wanted.or(custom.wanted()),
            _ => wanted,
        })
    }

    /// Returns the loss of a student's outputs.
    ///
    /// # Errors
    /// Config: outputs, labels or the teacher are missing, or shapes do not match; the message names both
    /// sides.
    pub fn loss(&self, student: &Outputs, targets: Targets) -> Result<Blended> {
        let mut terms = Vec::with_capacity(self.0.len());
        for term in &self.0 {
            let found = one(&term.loss, student, targets);
            terms.push(found.map_err(|error| error.at(format_args!("loss {:?}", term.loss.name())))?);
        }
        let weighted = terms.iter().zip(&self.0).map(|(loss, term)| loss.clone() * term.weight);
        let total = weighted.reduce(|sum, loss| sum + loss).ok_or_else(|| Error::bug("an empty blend"))?;
        Ok(Blended { total, terms })
    }
}

fn one(loss: &Loss, student: &Outputs, targets: Targets) -> Result<Tensor<1>> {
    if let Loss::Custom(custom) = loss {
        return custom.compute(student, targets);
    }
    if let Loss::Labels(smoothing) = loss {
        let labels = targets.need_labels()?;
        let scores = student.logits.clone().ok_or_else(|| lacks("student", "logits"))?;
        return Ok(labels::cross_entropy(scores, labels.clone(), *smoothing));
    }
    let teacher = targets.need_teacher()?;
    match loss {
        Loss::Logits(divergence, temperature) => {
            let [s, t] = pair(&student.logits, &teacher.logits, "logits")?;
            same("classes", s.dims()[1], t.dims()[1])?;
            if s.dims()[1] == 1 && *divergence != Divergence::Mse {
                return Err(Error::config("by: found one score, whose softmax is always 1, expected \"mse\""));
            }
            Ok(match divergence {
                Divergence::Kl => logits::kl(s, t, *temperature),
                Divergence::JensenShannon(beta) => logits::jensen_shannon(s, t, *temperature, *beta),
                Divergence::Mse => logits::mse(s, t),
            })
        }
        Loss::Embedding(by) => {
            let [s, t] = pair(&student.embedding, &teacher.embedding, "embeddings")?;
            if *by == Match::Similarity {
                return Ok(embedding::similarity(s, t));
            }
            same("width of embeddings", s.dims()[1], t.dims()[1])?;
            Ok(embedding::cosine(s, t))
        }
        Loss::Hidden(distance, map) => of_hidden(*distance, map, student, teacher, targets.projections),
        Loss::Attention(relation, map) => of_attention(*relation, map, student, teacher),
        Loss::Labels(_) | Loss::Custom(_) => Err(Error::bug("this loss is handled earlier")),
    }
}

fn of_hidden(
    distance: Distance,
    map: &LayerMap,
    student: &Outputs,
    teacher: &Outputs,
    projections: Option<&Projections>,
) -> Result<Tensor<1>> {
    over_layers(map, &student.hidden, &teacher.hidden, "hidden states", |layer, s, t| {
        let s = projections.map_or(s.clone(), |projections| projections.apply(layer, s));
        same("width of hidden states", s.dims()[2], t.dims()[2])?;
        Ok(match distance {
            Distance::Mse => hidden::mse(s, t, student.padding.clone()),
            Distance::Cosine => hidden::cosine(s, t, student.padding.clone()),
        })
    })
}

fn of_attention(relation: Relation, map: &LayerMap, student: &Outputs, teacher: &Outputs) -> Result<Tensor<1>> {
    let padding = || student.padding.clone();
    match relation {
        Relation::Maps => over_layers(map, &student.attention, &teacher.attention, "attention", |_, s, t| {
            same("attention heads", s.dims()[1], t.dims()[1])?;
            Ok(attention::maps(s, t, padding()))
        }),
        Relation::Values(n_heads) => {
            over_layers(map, &student.values, &teacher.values, "values of attention", |_, s, t| {
                for width in [s.dims()[2], t.dims()[2]] {
                    if !width.is_multiple_of(n_heads) {
                        return Err(Error::config(format!("heads: {n_heads} does not divide the width {width}")));
                    }
                }
                Ok(attention::values(s, t, n_heads, padding()))
            })
        }
    }
}

/// Returns the mean of a loss over the student's layers, each paired with the teacher's layer that it follows.
fn over_layers<const D: usize>(
    map: &LayerMap,
    student: &[Tensor<D>],
    teacher: &[Tensor<D>],
    what: &str,
    loss: impl Fn(usize, Tensor<D>, Tensor<D>) -> Result<Tensor<1>>,
) -> Result<Tensor<1>> {
    let layers = match (student, teacher) {
        ([], _) => return Err(lacks("student", what)),
        (_, []) => return Err(lacks("teacher", what)),
        _ => map.resolve(student.len(), teacher.len())?,
    };
    let of_pair =
        |(layer, &of_teacher): (usize, &usize)| loss(layer, student[layer].clone(), teacher[of_teacher].clone());
    let losses = layers.iter().enumerate().map(of_pair).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(losses, 0).mean())
}

fn pair<const D: usize>(
    student: &Option<Tensor<D>>,
    teacher: &Option<Tensor<D>>,
    what: &str,
) -> Result<[Tensor<D>; 2]> {
    let student = student.clone().ok_or_else(|| lacks("student", what))?;
    let teacher = teacher.clone().ok_or_else(|| lacks("teacher", what))?;
    Ok([student, teacher])
}

fn lacks(who: &str, what: &str) -> Error {
    Error::config(format!("the {who} has no {what}; use another loss"))
}

fn same(what: &str, student: usize, teacher: usize) -> Result<()> {
    if student == teacher {
        return Ok(());
    }
    Err(Error::config(format!("{what}: the student has {student} and the teacher {teacher}; they must be equal")))
}
