//! The document in the shape from which generators make good clients.

use std::collections::BTreeSet;

use serde_json::Value;
use utoipa::openapi::{
    OpenApi, Ref, RefOr,
    schema::{ArrayItems, Schema},
};

/// Lets lists refer to the schema of their entries, and says in words what an omitted field means.
pub(crate) fn shape(document: &mut OpenApi) {
    let Some(components) = &mut document.components else { return };
    let named: BTreeSet<String> = components.schemas.keys().cloned().collect();
    for (name, schema) in &mut components.schemas {
        if let Some(entry) = name.strip_prefix("Page_").filter(|entry| named.contains(*entry)) {
            refer(schema, entry);
        }
        say_defaults(schema);
    }
}

/// Lets a list refer to the schema of its entries instead of repeating it: a client then has one type for both.
fn refer(page: &mut RefOr<Schema>, entry: &str) {
    let RefOr::T(Schema::Object(page)) = page else { return };
    if let Some(RefOr::T(Schema::Array(items))) = page.properties.get_mut("items") {
        items.items = ArrayItems::RefOrSchema(Box::new(RefOr::Ref(Ref::from_schema_name(entry))));
    }
}

/// Says in words what an omitted field means. Generators take a field that has a `default` for one that is always there, but an answer may leave it
/// out, and so may a request.
fn say_defaults(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::Ref(named) => named.description = said(&named.description, named.default.take()),
        RefOr::T(Schema::Object(object)) => {
            if let Some(default) = object.default.take() {
                object.description = Some(said(object.description.as_deref().unwrap_or_default(), Some(default)));
            }
            object.properties.values_mut().for_each(say_defaults);
        }
        RefOr::T(Schema::Array(array)) => {
            array.default = None;
            if let ArrayItems::RefOrSchema(items) = &mut array.items {
                say_defaults(items);
            }
        }
        RefOr::T(Schema::OneOf(one)) => {
            one.default = None;
            one.items.iter_mut().for_each(say_defaults);
        }
        RefOr::T(Schema::AllOf(all)) => {
            all.default = None;
            all.items.iter_mut().for_each(say_defaults);
        }
        RefOr::T(Schema::AnyOf(any)) => {
            any.default = None;
            any.items.iter_mut().for_each(say_defaults);
        }
        _ => {}
    }
}

/// Adds a default to a description, unless it is empty or the description names one.
fn said(description: &str, default: Option<Value>) -> String {
    match default {
        Some(default @ (Value::Number(_) | Value::Bool(_))) if !description.contains("If omitted") => {
            format!("{description} If omitted, {default}.").trim_start().to_owned()
        }
        _ => description.to_owned(),
    }
}
