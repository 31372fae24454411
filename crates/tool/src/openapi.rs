//! Operations of an OpenAPI document as tools. The result is a manifest that a person reads and applies: later calls follow the manifest,
//! even if the document changes.

use serde_json::{Map, Value, json};

/// How many references are followed; a schema that refers to itself ends here.
const DEEPEST: usize = 12;

/// Returns the tools of a document: all of them, or those with these ids. `server` overrides the document's own.
pub fn tools(document: &Value, operations: &[String], server: Option<&str>) -> Result<Vec<Value>, String> {
    let paths = document["paths"].as_object().ok_or("the document has no `paths`: is it an OpenAPI document?")?;
    let said = server.or_else(|| document["servers"][0]["url"].as_str());
    let base = said.ok_or("the document names no server: set --server")?.trim_end_matches('/');
    let mut tools = Vec::new();
    for (path, item) in paths {
        for method in ["get", "put", "post", "patch", "delete"] {
            let operation = &item[method];
            let Some(id) = operation["operationId"].as_str() else { continue };
            if operations.is_empty() || operations.iter().any(|wanted| wanted == id) {
                let read = Operation { document, item, operation, method, id };
                let tool = read.tool(&format!("{base}{path}")).map_err(|why| format!("`{id}`: {why}"))?;
                tools.push(json!({ "tool": tool }));
            }
        }
    }
    if tools.is_empty() || tools.len() < operations.len() {
        return Err(format!("the document has no operation with an `operationId`, or not all of {operations:?}"));
    }
    Ok(tools)
}

struct Operation<'a> {
    document: &'a Value,
    item: &'a Value,
    operation: &'a Value,
    method: &'a str,
    id: &'a str,
}

impl Operation<'_> {
    fn tool(&self, url: &str) -> Result<Value, String> {
        let (mut properties, mut required, mut query) = (Map::new(), Vec::new(), Vec::new());
        let lists = [&self.item["parameters"], &self.operation["parameters"]];
        for parameter in lists.into_iter().filter_map(Value::as_array).flatten() {
            let parameter = self.resolve(parameter, 0);
            let name = parameter["name"].as_str().ok_or("a parameter has no `name`")?.to_owned();
            let is_required = parameter["required"] == true;
            match parameter["in"].as_str() {
                Some("path") => required.push(name.clone()),
                Some("query") => {
                    if is_required {
                        required.push(name.clone());
                    }
                    query.push(name.clone());
                }
                _ if is_required => {
                    return Err(format!(
                        "the required parameter `{name}` is neither in the path nor in the query: add it to `headers` of the manifest by hand"
                    ));
                }
                _ => continue,
            }
            let mut schema = self.resolve(&parameter["schema"], 0);
            if let (Some(schema), Some(said)) = (schema.as_object_mut(), parameter["description"].as_str()) {
                schema.entry("description").or_insert_with(|| said.into());
            }
            properties.insert(name, if schema.is_null() { json!({}) } else { schema });
        }
        let body = self.resolve(&self.operation["requestBody"], 0);
        if !body.is_null() {
            let schema = &body["content"]["application/json"]["schema"];
            let fields = schema["properties"].as_object();
            let fields = fields.ok_or("its request body must be a JSON object with `properties`")?;
            for (name, schema) in fields {
                if properties.insert(name.clone(), schema.clone()).is_some() {
                    return Err(format!(
                        "`{name}` is both a parameter and a field of the request body: write the manifest by hand"
                    ));
                }
            }
            required.extend(
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned),
            );
        }
        let result = ["200", "201", "202"].iter().find_map(|status| {
            let response = self.resolve(&self.operation["responses"][status], 0);
            let schema = response["content"]["application/json"]["schema"].clone();
            schema.is_object().then_some(schema)
        });
        let words = [&self.operation["summary"], &self.operation["description"]];
        let words: Vec<&str> = words.into_iter().filter_map(Value::as_str).collect();
        let effect = match self.method {
            "get" => "pure",
            "put" | "delete" => "idempotent",
            _ => "once",
        };
        let mut http = json!({ "method": self.method.to_uppercase(), "url": url });
        if !query.is_empty() && !matches!(self.method, "get" | "delete") {
            http["query"] = json!(query);
        }
        let mut tool = json!({
            "name": name(self.id),
            "description": if words.is_empty() { self.id.to_owned() } else { words.join("\n") },
            "parameters": { "type": "object", "properties": properties, "required": required, "additionalProperties": false },
            "http": http,
            "effect": effect,
        });
        if let Some(result) = result {
            tool["result"] = result;
        }
        Ok(tool)
    }

    /// Replaces every reference by what it refers to.
    fn resolve(&self, value: &Value, depth: usize) -> Value {
        match value {
            Value::Object(fields) => match fields.get("$ref").and_then(Value::as_str) {
                Some(_) if depth >= DEEPEST => json!({}),
                Some(reference) => {
                    let found = reference.strip_prefix('#').and_then(|pointer| self.document.pointer(pointer));
                    found.map_or_else(|| json!({}), |found| self.resolve(found, depth + 1))
                }
                None => fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.resolve(value, depth)))
                    .collect::<Map<_, _>>()
                    .into(),
            },
            Value::Array(values) => values.iter().map(|value| self.resolve(value, depth)).collect(),
            other => other.clone(),
        }
    }
}

/// `createTicket` is `create_ticket` here.
pub fn name(id: &str) -> String {
    let mut name = String::new();
    let mut was_low = false;
    for c in id.chars() {
        if c.is_ascii_uppercase() && was_low {
            name.push('_');
        }
        was_low = c.is_ascii_lowercase() || c.is_ascii_digit();
        let c = if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '_' };
        if !(c == '_' && name.ends_with('_')) {
            name.push(c);
        }
    }
    name.trim_matches(|c| matches!(c, '_' | '-')).chars().take(63).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use waybill_core::resource::Manifest;

    use super::*;
    use crate::check::check_manifest;

    /// The tool has the operation's own description, and can be applied.
    #[test]
    fn an_operation_is_a_tool() {
        let document = json!({
            "openapi": "3.1.0", "servers": [{ "url": "https://tickets.example/api/" }],
            "components": { "schemas": {
                "Ticket": { "type": "object", "properties": { "title": { "type": "string" }, "parent": { "$ref": "#/components/schemas/Ticket" } }, "required": ["title"] },
            } },
            "paths": {
                "/queues/{queue}/tickets": {
                    "parameters": [{ "name": "queue", "in": "path", "required": true, "schema": { "type": "string" } }],
                    "post": {
                        "operationId": "createTicket", "summary": "Opens a ticket.",
                        "parameters": [{ "name": "notify", "in": "query", "schema": { "type": "boolean" } }],
                        "requestBody": { "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Ticket" } } } },
                        "responses": { "201": { "content": { "application/json": { "schema": { "type": "object" } } } } },
                    },
                    "get": { "operationId": "listTickets", "responses": {} },
                },
            },
        });
        let all = tools(&document, &[], None).unwrap();
        assert_eq!(all.len(), 2);
        let one = tools(&document, &["createTicket".to_owned()], None).unwrap();
        let tool = &one[0]["tool"];
        assert_eq!(tool["name"], "create_ticket");
        assert_eq!(
            tool["http"],
            json!({ "method": "POST", "url": "https://tickets.example/api/queues/{queue}/tickets", "query": ["notify"] })
        );
        assert_eq!(tool["parameters"]["required"], json!(["queue", "title"]));
        assert_eq!((&tool["effect"], &tool["result"]["type"]), (&json!("once"), &json!("object")));
        assert!(!tool.to_string().contains("$ref"));
        for tool in all {
            let manifest: Manifest = serde_json::from_value(tool).unwrap();
            check_manifest(&manifest).unwrap();
        }
        assert!(tools(&document, &["other".to_owned()], None).unwrap_err().contains("other"));
        assert!(tools(&json!({}), &[], None).is_err());
        assert_eq!(name("getHTTPStatus2Now"), "get_httpstatus2_now");
    }
}
