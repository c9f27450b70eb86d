//! Names of tensors, of which there may be millions.

use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// The name of a tensor: a part of a text, which the names of other tensors may share.
///
/// It takes 16 bytes. Clones share the text.
#[derive(Clone, Default)]
pub struct TensorName {
    text: Arc<String>,
    start: u32,
    len: u32,
}

/// Names in one text. Millions of names have thousands of texts, so that texts are freed one by one.
pub(crate) const SHARED_NAMES: usize = 1024;

impl TensorName {
    /// Returns the name as a string slice.
    pub fn as_str(&self) -> &str {
        let start = self.start as usize;
        &self.text[start..start + self.len as usize]
    }

    /// Replaces the first `n` bytes. A text that no other name shares is reused.
    ///
    /// # Panics
    /// If the name has no such bytes, or they do not end at a character.
    pub fn replace_start(&mut self, n: usize, start: &str) {
        match Arc::get_mut(&mut self.text).filter(|text| text.len() == self.len as usize) {
            Some(text) => text.replace_range(..n, start),
            None => self.text = Arc::new([start, &self.as_str()[n..]].concat()),
        }
        (self.start, self.len) = (0, u32::try_from(self.text.len()).expect("a name is shorter than a header"));
    }

    /// Moves names into one text, which saves the memory of their own texts.
    pub(crate) fn share<'a>(names: impl Iterator<Item = &'a mut Self>) {
        let names: Vec<&mut Self> = names.collect();
        let mut text = String::with_capacity(names.iter().map(|name| name.len()).sum());
        if u32::try_from(text.capacity()).is_err() {
            return;
        }
        names.iter().for_each(|name| text.push_str(name));
        let (text, mut start) = (Arc::new(text), 0);
        for name in names {
            let len = name.len;
            *name = Self { text: text.clone(), start, len };
            start += len;
        }
    }
}

impl From<String> for TensorName {
    /// Creates a name with a text of its own.
    ///
    /// # Panics
    /// If the text has more than 4 GB. Headers are smaller.
    fn from(mut text: String) -> Self {
        text.shrink_to_fit();
        let len = u32::try_from(text.len()).expect("a name is shorter than a header");
        Self { text: Arc::new(text), start: 0, len }
    }
}

impl From<&str> for TensorName {
    fn from(text: &str) -> Self {
        text.to_string().into()
    }
}

impl Deref for TensorName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for TensorName {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for TensorName {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for TensorName {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for TensorName {}

impl PartialEq<str> for TensorName {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for TensorName {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for TensorName {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl PartialEq<TensorName> for String {
    fn eq(&self, other: &TensorName) -> bool {
        **self == **other
    }
}

impl Serialize for TensorName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl PartialOrd for TensorName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TensorName {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for TensorName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl fmt::Debug for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_an_own_or_shared_name_is_replaced() {
        let mut names: Vec<TensorName> = ["one.weight", "b.weight"].map(TensorName::from).into();
        for _ in 0..2 {
            names[0].replace_start(3, "another");
            names[0].replace_start(7, "one");
            names[1].replace_start(1, "");
            assert_eq!(names, ["one.weight", ".weight"]);
            names[1].replace_start(0, "b");
            TensorName::share(names.iter_mut());
        }
    }

    #[test]
    fn shared_names_equal_the_names_before() {
        for n in [0, 1, 3, 100] {
            let texts: Vec<String> = (0..n).map(|i| "é.weight"[i % 3 * 2..].repeat(i % 4)).collect();
            let mut names: Vec<TensorName> = texts.iter().map(|text| text.as_str().into()).collect();
            TensorName::share(names.iter_mut());
            assert_eq!(names, texts);
            assert!(names.windows(2).all(|pair| Arc::ptr_eq(&pair[0].text, &pair[1].text)));
        }
        assert_eq!((size_of::<TensorName>(), TensorName::default().as_str()), (16, ""));
    }
}
