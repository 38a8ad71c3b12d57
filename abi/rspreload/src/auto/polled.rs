//! A connection whose token is polled.

use super::shared::{self, Slot};

/// The index of a connection that was polled. It may have been given to another connection since,
/// even in the same round: what was found is not the other one's.
#[derive(Clone, Copy)]
pub struct Polled {
    index: u16,
    generation: u32,
}

impl Polled {
    /// The connection that has the index now.
    pub fn now(index: usize) -> Polled {
        Polled { index: index as u16, generation: shared::slot(index).map_or(0, Slot::generation) }
    }

    /// Returns the index, unless it is another connection's now.
    pub fn index(self) -> Option<usize> {
        let index = usize::from(self.index);
        (Polled::now(index).generation == self.generation).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::name::Name;

    #[test]
    fn an_index_of_another_connection_is_none() {
        assert!(shared::prepare());
        let token = Name::new([127, 0, 0, 1].into(), 40_200);
        let index = shared::claim(&token, 80, (&token, &token), (-1, 0)).unwrap();
        let polled = Polled::now(index);
        assert_eq!(polled.index(), Some(index));
        shared::slot(index).unwrap().free();
        assert_eq!(polled.index(), None);
        assert_eq!(shared::claim(&token, 80, (&token, &token), (-1, 0)), Some(index));
        assert_eq!(polled.index(), None);
        shared::slot(index).unwrap().free();
    }
}
