//! Whether the document names the scopes that the attacks of `chaos roles` take as given (SE-1).

use std::collections::BTreeMap;

use waybill_core::key::Scope;

use crate::roles::operations;

/// SE-1, UI-8
#[test]
fn the_document_names_the_scopes_that_attacks_take_as_given() {
    let document = serde_json::to_value(waybill_api::document()).unwrap();
    let paths = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
    let named = paths.map(|operation| (operation["operationId"].as_str().unwrap(), &operation["x-scopes"]));
    let named: BTreeMap<_, _> = named.collect();
    let mut differ = Vec::new();
    for operation in operations() {
        let may = Scope::ALL.into_iter().filter(|scope| *scope == Scope::Admin || operation.may.contains(scope));
        let may: Vec<&str> = may.map(Scope::as_str).collect();
        let said = named.get(operation.name).copied();
        // One that cannot be recorded, such as a way to the identity provider, names none.
        if said.is_some_and(serde_json::Value::is_null) {
            continue;
        }
        if said != Some(&serde_json::json!(may)) {
            differ.push(format!("{}: the document says {said:?}, the attacks {may:?}", operation.name));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
