//! Random bodies of model requests, of all formats: well-formed JSON in ways that no client should write it. The tests of the API include this file too.

use std::fmt::Write;

/// A generator of random choices: the same seed gives the same ones.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u32) -> Dice {
        Dice(u64::from(seed))
    }

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", "", "", " ", "\n", "\t ", "\r\n  "])
    }

    /// Returns a string as JSON: escapes of all kinds, half surrogates, and text that looks like structure.
    fn string(&mut self) -> String {
        const PARTS: [&str; 24] = [
            "a",
            "word ",
            "é",
            "😀",
            "\u{7f}",
            "\u{2028}",
            "\u{feff}",
            r"\n",
            r"\\",
            r#"\""#,
            r"\/",
            r"\u00e9",
            r"\u0000",
            r"\ud83d\ude00",
            r"\ud800",
            r"\udc00",
            r"\uD800\u0041",
            r#"\"messages\":["#,
            "]},{",
            "[",
            "/* x */",
            "// x",
            "null",
            r"\u005c",
        ];
        let n = if self.below(300) == 0 { 5_000 } else { self.below(6) };
        (0..n).fold("\"".to_owned(), |text, _| text + self.pick(&PARTS)) + "\""
    }

    fn number(&mut self) -> &'static str {
        self.pick(&[
            "0",
            "-0",
            "1",
            "12345678901234567890123",
            "1e999",
            "-1.5E-400",
            "0.1000000000000000055511151231257827",
            "3E+1",
        ])
    }

    pub(crate) fn value(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 4 } else { 7 }) {
            0 => self.pick(&["null", "true", "false"]).to_owned(),
            1 => self.number().to_owned(),
            2 | 3 => self.string(),
            4 | 5 => {
                let n = self.below(4);
                let elements: Vec<String> = (0..n).map(|_| self.value(depth - 1)).collect();
                self.list(&elements)
            }
            _ => {
                let n = self.below(4);
                let names = ["role", "content", "text", "messages", "tools", "input", "type", "x y", ""];
                let members: Vec<(String, String)> =
                    (0..n).map(|_| (self.key(names[self.0 as usize % 9]), self.value(depth - 1))).collect();
                self.object(&members)
            }
        }
    }

    /// Returns a key as JSON, sometimes with escapes. It is rarely half a surrogate pair.
    fn key(&mut self, name: &str) -> String {
        let mut key = "\"".to_owned();
        for c in name.chars() {
            match self.below(12) {
                0 => write!(key, "\\u{:04x}", u32::from(c)).unwrap(),
                1 => write!(key, "\\u{:04X}", u32::from(c)).unwrap(),
                _ => key.push(c),
            }
        }
        if self.below(40) == 0 { r#""\ud800""#.to_owned() } else { key + "\"" }
    }

    /// Joins elements. The spacing is mostly the same everywhere.
    fn list(&mut self, elements: &[String]) -> String {
        let mut list = format!("[{}", self.space());
        let is_even = self.below(3) > 0;
        let mut between = format!("{},{}", self.space(), self.space());
        for (n, element) in elements.iter().enumerate() {
            if n > 0 {
                list += &between;
            }
            if !is_even {
                between = format!("{},{}", self.space(), self.space());
            }
            list += element;
        }
        list + self.space() + "]"
    }

    fn object(&mut self, members: &[(String, String)]) -> String {
        let mut object = format!("{{{}", self.space());
        for (n, (key, value)) in members.iter().enumerate() {
            if n > 0 {
                object = object + self.space() + "," + self.space();
            }
            object = object + key + self.space() + ":" + self.space() + value;
        }
        object + self.space() + "}"
    }

    /// Returns a body. Any key may be missing, doubled, or have a value that no provider expects.
    pub(crate) fn body(&mut self) -> String {
        let names = [
            "model",
            "stream",
            "messages",
            "messages",
            "input",
            "tools",
            "system",
            "instructions",
            "metadata",
            "thread",
            "n",
        ];
        let n = self.below(12);
        let members: Vec<(String, String)> = (0..n)
            .map(|_| {
                let name = self.pick(&names);
                let value = match name {
                    "messages" | "input" | "tools" if self.below(5) > 0 => {
                        let n = self.below(6);
                        let elements: Vec<String> = (0..n).map(|_| self.value(3)).collect();
                        self.list(&elements)
                    }
                    _ => self.value(3),
                };
                (self.key(name), value)
            })
            .collect();
        format!("{}{}{}", self.space(), self.object(&members), self.space())
    }
}
