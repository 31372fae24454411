//! Reads server-sent events from pieces of any size.

use super::Error;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

/// The largest event. No real provider sends one as large as this.
const MOST: usize = 16 << 20;

/// Joins pieces into lines and events. A character may be split over pieces, so a line is decoded only when it is complete.
#[derive(Debug, Default)]
pub(super) struct Lines {
    unread: Vec<u8>,
    event: Event,
    has_data: bool,
}

impl Lines {
    /// Adds a piece, and returns the events that are now complete.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<Vec<Event>, Error> {
        self.unread.extend_from_slice(piece);
        if self.unread.len() + self.event.data.len() > MOST {
            return Err(Error::Garbled("an event has more than 16 MB".into()));
        }
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(length) = self.unread[from..].iter().position(|byte| *byte == b'\n') {
            let line = &self.unread[from..from + length];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = std::str::from_utf8(line).map_err(|_| Error::Garbled("a line is not UTF-8".into()))?;
            from += length + 1;
            match line.split_once(':').map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value))) {
                Some(("event", name)) => self.event.name = name.to_owned(),
                Some(("data", data)) => {
                    if self.has_data {
                        self.event.data.push('\n');
                    }
                    self.event.data.push_str(data);
                    self.has_data = true;
                }
                _ if line.is_empty() => {
                    let event = std::mem::take(&mut self.event);
                    if std::mem::take(&mut self.has_data) {
                        events.push(event);
                    }
                }
                // A comment, an id, a retry.
                _ => {}
            }
        }
        self.unread.drain(..from);
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// It does not matter where the stream is cut, even inside a character.
    #[test]
    fn events_come_out_of_any_pieces() {
        let stream =
            "event: a\r\ndata: {\"x\":\"é水\"}\r\n\r\n: ping\n\ndata: one\ndata: two\nid: 7\n\ndata:[DONE]\n\n";
        let event = |name: &str, data: &str| Event { name: name.into(), data: data.into() };
        let whole = [event("a", "{\"x\":\"é水\"}"), event("", "one\ntwo"), event("", "[DONE]")];
        for size in [1, 2, 3, 5, 7, 11, 1000] {
            let mut lines = Lines::default();
            let events: Vec<Event> =
                stream.as_bytes().chunks(size).flat_map(|piece| lines.feed(piece).unwrap()).collect();
            assert_eq!(events, whole, "{size}");
        }
        assert!(Lines::default().feed(b"data: \xff\n").is_err());
    }
}
