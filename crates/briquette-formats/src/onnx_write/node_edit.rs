//! Changes the attributes of nodes, also of those that a file encodes.

use super::encode::of_attribute;
use super::model::{OnnxAttribute, OnnxNode};

impl OnnxNode {
    /// Sets an attribute.
    pub fn set(&mut self, name: &'static str, value: OnnxAttribute) {
        self.remove(name);
        if let Some(carried) = &mut self.carried {
            carried.attributes.push((name.into(), of_attribute(name, &value).bytes));
        }
        self.attributes.push((name.into(), value));
    }

    /// Removes an attribute.
    pub fn remove(&mut self, name: &str) {
        self.attributes.retain(|(known, _)| known != name);
        if let Some(carried) = &mut self.carried {
            carried.attributes.retain(|(known, _)| known != name);
        }
    }
}
