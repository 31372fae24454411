//! Measures content while it is streamed: its hash, the hashes of its pieces, its size and its tokens.

use bytes::Bytes;
use waybill_core::{
    artifact::{ArtifactHash, PIECE, Stored},
    tokens,
};

/// Up to this size tokens are counted. Beyond it, they are estimated from the beginning of the content.
const COUNTED: usize = 16 << 20;
const SAMPLE: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Measure {
    whole: blake3::Hasher,
    piece: blake3::Hasher,
    in_piece: u64,
    pieces: Vec<u8>,
    size: u64,
    /// All of the content while it is small enough to be counted, then only a sample.
    beginning: Vec<Bytes>,
}

impl Measure {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn update(&mut self, content: &Bytes) {
        let was_counted = self.size <= COUNTED as u64;
        self.whole.update(content);
        self.size += content.len() as u64;
        if self.size <= COUNTED as u64 {
            self.beginning.push(content.clone());
        } else if was_counted {
            self.beginning.push(content.clone());
            let mut sample = Vec::with_capacity(SAMPLE);
            for part in std::mem::take(&mut self.beginning) {
                sample.extend_from_slice(&part[..part.len().min(SAMPLE - sample.len())]);
            }
            self.beginning = vec![sample.into()];
        }
        let mut bytes = content.as_ref();
        while !bytes.is_empty() {
            let room = usize::try_from(PIECE - self.in_piece).unwrap_or(usize::MAX);
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.piece.update(now);
            self.in_piece += now.len() as u64;
            bytes = rest;
            if self.in_piece == PIECE {
                self.end_piece();
            }
        }
    }

    fn end_piece(&mut self) {
        self.pieces.extend_from_slice(self.piece.finalize().as_bytes());
        self.piece.reset();
        self.in_piece = 0;
    }

    /// Finishes the hashes and counts the tokens, which takes a while.
    pub(crate) fn finish(mut self) -> Stored {
        if self.in_piece > 0 {
            self.end_piece();
        }
        let is_estimate = self.size > COUNTED as u64;
        let beginning = std::mem::take(&mut self.beginning).concat();
        let text = match std::str::from_utf8(&beginning) {
            Ok(text) => Some(text),
            // The sample ends in the middle of a character.
            Err(error) if is_estimate && error.error_len().is_none() => {
                std::str::from_utf8(&beginning[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        let n_tokens = text.map(|text| {
            let counted = i64::from(tokens::count(text).get());
            if !is_estimate {
                return counted;
            }
            let scaled = i128::from(counted) * i128::from(self.size) / (text.len().max(1) as i128);
            i64::try_from(scaled).unwrap_or(i64::MAX)
        });
        Stored {
            hash: ArtifactHash::from_bytes(*self.whole.finalize().as_bytes()),
            size: self.size,
            n_tokens,
            is_estimate: is_estimate && n_tokens.is_some(),
            pieces: self.pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(bytes: &[u8], at_a_time: usize) -> Stored {
        let mut measure = Measure::default();
        bytes.chunks(at_a_time).for_each(|bytes| measure.update(&Bytes::copy_from_slice(bytes)));
        measure.finish()
    }

    #[test]
    fn it_does_not_matter_how_content_arrives() {
        let text = "余额 balance\n".repeat(200_000);
        let whole = Stored::of(text.as_bytes());
        assert_eq!(whole.pieces.len(), 32 * 3);
        for at_a_time in [1 << 10, 4097, 1 << 20, 1 << 22] {
            assert_eq!(measure(text.as_bytes(), at_a_time), whole);
        }
        assert_eq!(measure(&[0xff, 0, 1], 2).n_tokens, None, "no text, no tokens");
        assert_eq!(measure(b"", 1).n_tokens, Some(0));
    }

    #[test]
    fn what_is_too_much_to_count_is_estimated() {
        let text = "a line of the log, 余额\n".repeat(800_000);
        let stored = measure(text.as_bytes(), 1 << 20);
        let exact = 800_000 * i64::from(tokens::count("a line of the log, 余额\n").get());
        assert!(stored.is_estimate);
        let estimate = stored.n_tokens.unwrap();
        assert!((estimate - exact).abs() < exact / 50, "{estimate} for {exact}");
    }
}
