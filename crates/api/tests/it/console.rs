//! The pages of the console, as a browser gets them.

use reqwest::{Client, Response, redirect::Policy};
use waybill_api::Config;

use crate::House;

impl House {
    async fn page(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        let http = Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
        let mut request = http.get(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// UI-4: a browser that opens `/` gets the console, which needs no key and may load nothing from elsewhere. Programs get what they got.
#[tokio::test]
async fn a_browser_gets_the_console() {
    let house = House::open().await;
    let front = house.page("/", &[("accept", "text/html,*/*")]).await;
    assert_eq!((front.status().as_u16(), header(&front, "location")), (303, "/ui/"));
    let program = house.page("/", &[("accept", "*/*")]).await;
    assert_eq!((program.status().as_u16(), header(&program, "content-type")), (404, "application/problem+json"));

    let page = house.page("/ui/", &[]).await;
    assert_eq!((page.status().as_u16(), header(&page, "cache-control")), (200, "no-cache"));
    let policy = header(&page, "content-security-policy").to_owned();
    for rule in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]
    {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let tag = header(&page, "etag").to_owned();
    let html = page.text().await.unwrap();
    let script = html.split('"').find(|part| part.ends_with(".js")).unwrap().to_owned();
    assert!(!html.contains("<style") && !html.contains("<script>"), "{html}");
    assert_eq!(house.page("/ui/", &[("if-none-match", &tag)]).await.status(), 304);

    // Addresses of the console load the page, and files that are gone do not.
    let deep = house.page("/ui/demo/runs/01a1ed78-87a3-757b-aea1-f4d542dbed8e", &[]).await;
    assert_eq!((deep.status().as_u16(), deep.text().await.unwrap()), (200, html));
    assert_eq!(house.page("/ui/assets/index-gone.js", &[]).await.status(), 404);

    let packed = house.page(&script, &[("accept-encoding", "br, gzip;q=0.8")]).await;
    assert_eq!(
        (header(&packed, "content-encoding"), header(&packed, "content-type")),
        ("gzip", "text/javascript; charset=utf-8")
    );
    assert!(header(&packed, "cache-control").contains("immutable"));
    let (packed, plain) = (packed.bytes().await.unwrap(), house.page(&script, &[]).await.bytes().await.unwrap());
    assert!(packed.len() * 2 < plain.len(), "{} of {} bytes", packed.len(), plain.len());
    let refuses = house.page(&script, &[("accept-encoding", "gzip;q=0")]).await;
    assert_eq!(header(&refuses, "content-encoding"), "");
    // The paths of logins stay those of the API.
    assert_eq!(house.page("/ui/session", &[]).await.status(), 401);
}

/// UI-4: an operator can leave the console out.
#[tokio::test]
async fn the_console_can_be_left_out() {
    let house = House::open_with(Config { console: false, ..Config::default() }).await;
    for path in ["/", "/ui/", "/ui/demo/runs"] {
        assert_eq!(house.page(path, &[("accept", "text/html")]).await.status(), 404, "{path}");
    }
}
