//! Projects over HTTP, where no key is needed.

use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::{House, open_house};

/// SE-1: a server of `waybill dev` makes projects for callers on its own machine; another server does not.
#[tokio::test]
async fn only_an_open_house_makes_projects() {
    let house = House::open_with(open_house()).await;
    let made = |slug: &str, more: bool| Some(json!({ "slug": slug, "with_key": more }));
    let ask = async |body| house.ask(Method::POST, "/v1/projects", None, body).await;
    let (status, plain) = ask(made("test-1", false)).await;
    assert_eq!((status, plain.get("key")), (StatusCode::OK, None), "{plain}");
    assert_eq!(house.ask(Method::GET, "/v1/projects/test-1/turns", None, None).await.0, 200);
    let audit = house.ask(Method::GET, "/v1/projects/test-1/audit", None, None).await.1;
    assert_eq!(
        (&audit["items"][0]["actor"], &audit["items"][0]["action"]),
        (&json!("loopback"), &json!("project.create"))
    );

    let (_, keyed) = ask(made("test-2", true)).await;
    let me = house.ask(Method::GET, "/v1/me", Some(keyed["key"].as_str().unwrap()), None).await.1;
    assert_eq!((&me["scope"], &me["project"]["slug"]), (&json!("admin"), &json!("test-2")));
    assert_eq!(me["project"]["project_id"], keyed["project_id"]);

    assert_eq!(ask(made("test-1", false)).await.1["code"], "taken");
    assert_eq!(ask(made("Test 1", false)).await.1["code"], "invalid");
    let headed = house.ask_once(Method::POST, "/v1/projects", None, made("test-3", false), Some("k")).await;
    assert_eq!(headed.1["code"], "invalid");

    let list = async |query: &str| house.ask(Method::GET, &format!("/v1/projects{query}"), None, None).await.1;
    let first = list("?most=2").await;
    assert_eq!((&first["items"][0]["slug"], &first["items"][1]["slug"]), (&json!("acme"), &json!("test-1")));
    assert_eq!(list(&format!("?after={}", first["next"].as_str().unwrap())).await["items"][0]["slug"], "test-2");
    assert_eq!(list("?after=%00").await["code"], "invalid");

    // Not on behalf of a page in a browser.
    let request = house.http.post(format!("{}/v1/projects", house.base)).header("origin", "https://evil.example");
    let request = request.header("content-type", "application/json").body(made("evil", false).unwrap().to_string());
    assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN);

    let shut = House::open().await;
    for key in [None, Some(shut.admin.as_str())] {
        let refused = shut.refused(Method::POST, "/v1/projects", key, made("mine", true)).await;
        assert_eq!(refused, (403, "forbidden".to_owned()));
        assert_eq!(shut.refused(Method::GET, "/v1/projects", key, None).await, (403, "forbidden".to_owned()));
    }
    assert_eq!(shut.t.count("select count(*) from resource.projects").await, 1);
}
