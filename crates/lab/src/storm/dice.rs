//! Reproducible random numbers: the same seed gives the same throws (SplitMix64).

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Makes dice whose seed is derived from `thing`.
    pub fn of(thing: &impl std::fmt::Display) -> Dice {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Dice(thing.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn one_of(&mut self, n: usize) -> usize {
        (self.throw() % n.max(1) as u64) as usize
    }

    pub fn chance(&mut self, share: f64) -> bool {
        (self.throw() as f64 / u64::MAX as f64) < share
    }

    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = (most.saturating_sub(least)).as_micros() as u64 + 1;
        least + Duration::from_micros(self.throw() % span)
    }
}
