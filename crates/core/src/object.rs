//! Objects, read from objects alone: a list is not taken for the fields of a struct in their order.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Reads a struct. For `deserialize_with`.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(Fields(PhantomData))
}

/// Reads a struct, or nothing. For `deserialize_with`.
pub fn object_or_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_option(Perhaps(PhantomData))
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

struct Perhaps<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Perhaps<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        object(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use crate::{resource::DelegationPolicy, turn::Limits};

    #[derive(Debug, serde::Deserialize)]
    struct Both {
        #[serde(default, deserialize_with = "super::object_or_none")]
        limits: Option<Limits>,
        #[serde(default, deserialize_with = "super::object")]
        policy: DelegationPolicy,
    }

    #[test]
    fn a_list_is_no_object() {
        let both = |text: &str| serde_json::from_str::<Both>(text);
        let read = both(r#"{ "limits": { "steps": 3 }, "policy": {} }"#).unwrap();
        assert_eq!((read.limits.unwrap().steps, read.policy), (Some(3), DelegationPolicy::default()));
        assert!(both(r#"{ "limits": null }"#).unwrap().limits.is_none());
        for wrong in
            [r#"{ "limits": [null, null] }"#, r#"{ "limits": [] }"#, r#"{ "policy": [] }"#, r#"{ "policy": null }"#]
        {
            assert!(both(wrong).is_err(), "{wrong}");
        }
    }
}
