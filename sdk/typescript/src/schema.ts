// Written by console/api.mjs from the OpenAPI document.
export interface paths {
    "/ui/callback": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Finish a login. The identity provider sends the browser here.
         * @description The session may do what the ID token says, in each project that it names, until the token expires, and for 12 hours at most.
         */
        get: operations["finish_login"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ui/login": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Log in with the identity provider. Sends the browser to the provider's login page.
         * @description For this, the server needs a client id: `waybill serve --oidc-client-id`.
         */
        get: operations["begin_login"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/ui/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the browser session: who has logged in, and what they may do in which project. */
        get: operations["show_login"];
        put?: never;
        /**
         * Log in with an API key. The session has the scope and bounds of the key, for 12 hours at most, and ends with the key.
         * @description The response sets a cookie, which replaces the header `Authorization`. With the cookie, a request that changes something must have
         *     `Sec-Fetch-Site: same-origin`, or an `Origin` that is this server's: browsers send them by themselves.
         */
        post: operations["log_in"];
        /** Log out: end the browser session, and its streams. */
        delete: operations["log_out"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/me": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the caller: its key, what it may do, in which project, and until when.
         * @description A token that names several projects is refused.
         */
        get: operations["show_me"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List all projects, ordered by slug. Only `waybill dev` does this over HTTP, and only for callers on its own machine. */
        get: operations["list_projects"];
        put?: never;
        /**
         * Create a project. Only `waybill dev` does this over HTTP, and only for callers on its own machine.
         * @description Elsewhere the answer is 403 `forbidden`: use `waybill project create`. A request with an `Idempotency-Key` is refused: a slug can be used once.
         */
        post: operations["create_project"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the id and the slug of the project that your API key belongs to. */
        get: operations["show_project"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/agents": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the agents of the project with their status. Retired agents are left out. */
        get: operations["list_agents"];
        put?: never;
        /**
         * Add a permanent agent to the project.
         * @description It stays in the project also while it has no work. It remembers its earlier turns, except those in sessions.
         */
        post: operations["provision_agent"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/agents/{agent}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the status of an agent, its current turn, and how many of its turns are queued.
         * @description An agent that was created for a task has a status only while it has work. Without work, the response is 404 `not_found`.
         */
        get: operations["show_agent"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/artifacts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List artifacts in the order of their paths, each in its newest version. */
        get: operations["list_artifacts"];
        /**
         * Store content at a path, as a new version.
         * @description The content is stored completely or not at all. If it is the same as in the newest version, no new version is created, unless the media type
         *     changes or the content is marked as external for the first time.
         */
        put: operations["put_artifact"];
        post?: never;
        /**
         * Remove an artifact, or only its older versions.
         * @description A removed version can no longer be listed, or read by its path. If a card refers to it, turns that have this card can still read it. Otherwise its
         *     content is deleted later.
         */
        delete: operations["remove_artifact"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/artifacts/content": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read the content of an artifact.
         * @description The server checks the content against its hash while it sends it. The header `Range: bytes=0-99` returns a part. The content type is always
         *     `application/octet-stream`, so that browsers do not display the content. The list of artifacts shows the media type.
         */
        get: operations["read_artifact"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/artifacts/versions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the versions of an artifact, newest first. */
        get: operations["list_versions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the audit log, newest first: which management actions were done, and by which caller. */
        get: operations["list_audit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a batch and the state of its tasks. */
        get: operations["show_batch"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/boxes/batch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Show boxes by id, up to 1,000, without their cards. */
        post: operations["show_boxes"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/boxes/{box}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a box, without its cards. */
        get: operations["show_box"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/boxes/{box}/cards": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the cards of a box, in order.
         * @description A page has at most 4 MiB of cards, or one larger card. A card that occurs several times on a page is listed once, at its first position.
         */
        get: operations["list_cards"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/boxes/{box}/entries": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the entries of a box: cards of its own, and ranges of other boxes. */
        get: operations["list_entries"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/boxes/{box}/heirs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the boxes that took a range of a box. */
        get: operations["list_heirs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cache-misses": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show where calls found less in the provider's prompt cache than it could have kept: what had changed, and what it cost.
         * @description Each call is compared with the one before it in its conversation. What that one had sent already, and this one did not read from the cache, is lost;
         *     less than 1,024 tokens do not count, because providers keep nothing shorter. Where a message changed, that is the most
         *     that it can be: what follows the message may be new. One answer looks at about 10,000 calls: `complete_until` says where to
         *     continue. Money is known where the operator's file has the prices of the model.
         */
        get: operations["show_cache_misses"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/calls/claim": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Claim calls of a target, to answer them.
         * @description If no call is waiting, the request waits up to `wait_seconds` for one.
         */
        post: operations["claim_calls"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/calls/{call}/report": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Answer a call that the worker has claimed.
         * @description After the last answer that a turn waits for, workers can claim the turn again. 409 `stale` means that another worker has the call.
         */
        post: operations["report_call"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/batch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Show cards by id, up to 1,000.
         * @description A response has at most 4 MiB of cards, or one larger card. `left_card_ids` lists the cards that did not fit: request them again.
         */
        post: operations["show_cards"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a card. If it has expired or was deleted, only its id, its hash and the reason are shown. */
        get: operations["show_card"];
        put?: never;
        post?: never;
        /**
         * Delete a card, so that turns no longer see it.
         * @description The card's hash, the reason, and its positions in boxes are kept. Receipts still show which turns have seen the card. If the card was deleted
         *     before, nothing changes, and the first reason is kept. The content stays in the database: to destroy it, use `waybill card erase`.
         */
        delete: operations["delete_card"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}/blast": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List what followed from a card: the turns that saw it, and all that was written after seeing it.
         * @description A model call `did` see the card if the card was part of its request. What the turn wrote with that call and later is `derived`, and so are calls
         *     that saw something of it: in an answer, a handover, an argument, a summary, a todo list, or a package that names an artifact. A turn `could` see
         *     the card if the card was there for it, but in none of its requests. Prompts, tool lists and documents of the knowledge are not followed.
         */
        get: operations["show_blast"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}/calls": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the model calls that read a card from a box, by their receipts.
         * @description A call that read a card may have left it out, to stay within its budget or because a summary covers it: the context of the call says so. Cards
         *     that stand in no box of a turn (prompts, tool lists, blocks) are not found here. A page covers up to `most` places of the card, so it may have
         *     fewer entries, or more.
         */
        get: operations["list_card_calls"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}/expire": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Set when a card expires. After that time, turns no longer see it.
         * @description A card that already has an expiry time keeps it: the request is refused. Shared cards, such as profiles, cannot expire.
         */
        post: operations["expire_card"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}/holdings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the places where a card stands: the boxes that hold it, and where. */
        get: operations["list_holdings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/cards/{card}/sight": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the agents that could see a card, and why.
         * @description A box with the card was made for the agent, packed for it, granted to it, or written by its children. Grants that were revoked count: the agent
         *     could see the card before. A page covers up to `most` boxes that hold the card, so it may have fewer entries, or more.
         */
        get: operations["list_sight"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/context/diff": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Compare what a model saw in two model calls.
         * @description They are compared by set, order and tokens, message by message, and by where a prompt cache stops being of use.
         */
        get: operations["diff_contexts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Watch a whole project, or a tree of turns, as server-sent events.
         * @description The events are `state`, `step`, `request` and `task`, of all turns or of those in the tree of `root`. Each has an id, after which an interrupted
         *     stream can be continued; its `data` is a `TurnEvent` as JSON. The events of one turn come in their order, and each event comes once. Only if a
         *     transaction in the database stays open for seconds can an event come again after you continue; its `event_id` is then the same. For the turns in
         *     `tokens` there are also `token` events: they have no id, and their `data` is a `TokenEvent`. The stream begins
         *     with an id without an event, and now and then there is another one, so that you need not continue from long ago. The stream does not end by itself.
         */
        get: operations["watch_project"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/find": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Find a turn, card, box, session, agent, batch, tool call or artifact by its id, the beginning of its id, its hash or its path.
         * @description Up to 20 things are returned, and up to 5 of each kind. The id of a trace that Waybill began is the id of its root turn. Steps are not found by
         *     their id: look at their turn.
         */
        get: operations["find"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/forks/compare": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Compare runs: a turn and its forks, or any other turns.
         * @description Each run is a turn with the turns that it started. The answer says what each came to, where its context differs from the first one, and whether it
         *     delivered the same. A deliverable that is too long for the answer is `null`: read its card.
         */
        get: operations["compare_forks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/grants": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List grants, revoked ones included, newest first. */
        get: operations["list_grants"];
        put?: never;
        /** Let an agent read a box, and pass it on to other agents. */
        post: operations["give_grant"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/grants/{grant}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Revoke a grant.
         * @description What was handed over under it stays where it is.
         */
        delete: operations["revoke_grant"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/handoff-types/{name}/schema": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the JSON Schema of a handoff type: the project's own, or a built-in one. */
        get: operations["show_schema"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/handoffs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Send a handoff package to an agent, and start a turn for it.
         * @description The server checks the package first, and refuses it if it finds a problem. It asks no person for an approval: by sending the package, the caller
         *     approves it.
         */
        post: operations["send_handoff"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/handoffs/check": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Check a handoff package without sending it.
         * @description The response lists all problems that were found.
         */
        post: operations["check_handoff"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the API keys of the project, including revoked ones.
         * @description The keys themselves cannot be shown: the server stores only their hashes.
         */
        get: operations["list_keys"];
        put?: never;
        /**
         * Create an API key.
         * @description The key is shown only in this response, so a request with an `Idempotency-Key` is refused. If the response is lost, revoke the key and create
         *     another one.
         */
        post: operations["create_key"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/keys/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Revoke an API key, at once or after some time. */
        delete: operations["revoke_key"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/knowledge": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the documents of one kind, in the order of their paths. */
        get: operations["list_documents"];
        /**
         * Store a document, Markdown or plain text, so that agents can find it.
         * @description Storing the same document again changes nothing.
         */
        put: operations["apply_document"];
        post?: never;
        /**
         * Remove a document, so that searches no longer find it.
         * @description Passages that turns have already seen are kept, so that their model calls can still be shown.
         */
        delete: operations["remove_document"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/knowledge/search": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Search documents for passages that contain words of a question.
         * @description This search compares words only. Agents can also search by meaning, if the settings of the project name an embedding model.
         */
        post: operations["search_knowledge"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/now": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show what the project does now: what runs, what waits and for whom, what became of the last hour's turns, and which workers are alive. */
        get: operations["show_now"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/plans/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the manifest of a plan. */
        get: operations["show_plan"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/profiles/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the manifest of a profile, in its newest version. */
        get: operations["show_profile"];
        put?: never;
        post?: never;
        /**
         * Remove a profile that no other profile names and that has no open turn.
         * @description Turns that have ended keep the version that they ran with. A key of scope `developer` removes profiles whose `worker_target` is among its targets.
         */
        delete: operations["remove_profile"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/refusals": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List boxes that agents named and may not read, newest first. */
        get: operations["list_refusals"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/requests": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the approvals and questions that wait for a person's decision, or that were decided, newest first.
         * @description A request whose turn ended before a decision is in neither list.
         */
        get: operations["list_requests"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/requests/{call}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a request: what is asked, about which tool call, and how it was decided. */
        get: operations["show_request"];
        put?: never;
        /**
         * Decide a request: approve, reject or answer it.
         * @description Only the first decision counts. If the request was decided before, or its turn has ended, the response is 404 `not_found`.
         */
        post: operations["decide_request"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/resources": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List all resources of the project, by kind and name. */
        get: operations["list_resources"];
        put?: never;
        /**
         * Create or change profiles, tools, plans, handoff types and settings: all of them, or none if one is refused.
         * @description Applying the same manifests again changes nothing.
         */
        post: operations["apply_resources"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/retention": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show how long the project keeps content and record, and whether it is under a legal hold. */
        get: operations["show_retention"];
        /**
         * Set how long the project keeps content and record.
         * @description What becomes longer does so at once. What becomes shorter does so after seven days; until then, set it back to undo it.
         */
        put: operations["set_retention"];
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/retention/hold": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /**
         * Put the project under a legal hold, so that retention removes nothing.
         * @description If the project is under a hold already, nothing changes: the first reason stays.
         */
        put: operations["place_hold"];
        post?: never;
        /** Lift the legal hold of the project. Retention goes on at once. */
        delete: operations["lift_hold"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/retention/plan": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Count what retention would remove now, without removing anything.
         * @description It counts for two seconds at most. If `is_all` is `false`, there is more.
         */
        get: operations["plan_retention"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the sessions that your API key opened, newest first.
         * @description With a key of scope `admin`, all sessions of the project are listed.
         */
        get: operations["list_sessions"];
        put?: never;
        /**
         * Open a session: a conversation of several turns.
         * @description Only your API key and keys of scope `admin` can see the session. You can also open a session by starting a turn with a new `session_id`.
         */
        post: operations["open_session"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/sessions/{session}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a session, with its todo list and the summary of its older messages. */
        get: operations["show_session"];
        put?: never;
        post?: never;
        /**
         * Forget a session: delete its list of messages, its todo list and its summary.
         * @description The cards of the messages are kept with the turns that wrote them, until they are erased.
         */
        delete: operations["forget_session"];
        options?: never;
        head?: never;
        /** Change the title or the labels of a session. */
        patch: operations["describe_session"];
        trace?: never;
    };
    "/v1/projects/{project}/sessions/{session}/changes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the changes of a session's todo list, summary and results, newest first. */
        get: operations["list_changes"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/sessions/{session}/end": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * End a session: no more turns can start in it.
         * @description Turns that are open continue, and their messages are still added to the session.
         */
        post: operations["end_session"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/sessions/{session}/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the messages of a session, oldest first.
         * @description Messages are the instructions that started turns, what callers sent to running turns, and the deliverables of turns.
         */
        get: operations["list_messages"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/sessions/{session}/turns": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the turns of a session, newest first. */
        get: operations["list_session_turns"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/settings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show the settings of the project. */
        get: operations["show_settings"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/spend": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show what the turns have spent that began in a span of time, by hour, day, profile, model, agent or session.
         * @description A turn counts with all that it has used so far, also after `until`. One answer adds up about 100,000 steps: `complete_until` says where to
         *     continue.
         */
        get: operations["show_spend"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/tools/{name}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the manifest of a tool, in its newest version.
         * @description A key of scope `tool` sees the tools of its targets.
         */
        get: operations["show_tool"];
        /**
         * Register a tool whose calls your own process claims, or change it.
         * @description A key of scope `tool` or `developer` registers tools of its targets. It cannot change a tool that has another target or was applied (409
         *     `conflict`), and cannot register tools with `http` or `mcp`. With a key of scope `admin` the tool is applied. Agents can call the tool once it is
         *     among the `allowed_tools` of their profile.
         */
        put: operations["register_tool"];
        post?: never;
        /**
         * Remove a tool that no profile may call.
         * @description A key of scope `tool` or `developer` removes tools that were registered for one of its targets, and none that was applied (409 `conflict`).
         */
        delete: operations["remove_tool"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List turns, newest first.
         * @description All filters must hold. A page looks at up to 2,000 turns, so with a filter that few turns pass it may have fewer entries than asked for, or none:
         *     continue with `next`.
         */
        get: operations["list_turns"];
        put?: never;
        /**
         * Start a turn: an agent works on an instruction and delivers a result.
         * @description With `wait_seconds` the answer comes once the turn has ended, or after that time, and has the turn in it.
         */
        post: operations["start_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/batch": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Start many turns, up to 1,000. Each has its own idempotency key and its own outcome.
         * @description A start that is refused does not stop the others. If all are refused, the response is the problem of the first. Send no `Idempotency-Key` header:
         *     each start has its own `key`.
         */
        post: operations["start_turns"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show a turn, its steps, and its deliverable.
         * @description With `wait_seconds` the answer comes once the turn has ended, or after that time.
         */
        get: operations["show_turn"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/answer": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Send what the model answered to a composed request.
         * @description The server reads the answer as Waybill's own worker does: it refuses, answers or sends out each tool call, and writes cards, calls, usage and the
         *     receipt in one transaction. The step and the receipt are marked as `reported`. 409 `receipt_mismatch` means that the server would not have composed
         *     this request, or that another answer to it was written, and 422 `unreadable_response` that the answer is not one of this provider's format, or
         *     reports a failure: nothing was written. If the turn was stopped, or its time is over, it is ended without the answer. 409 `stale` means that another worker has the turn, or that the turn has ended.
         */
        post: operations["answer_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/budget": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the budget of a turn: what it was given, what is left, what it lent to its children and got back, and what it has spent.
         * @description Up to 1,000 turns of its tree are added up. `truncated` says whether there are more.
         */
        get: operations["show_budget"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/compose": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Compose the next model request of a turn that the worker has claimed.
         * @description The request has the exact bytes that Waybill's own worker would send. Composing it again changes nothing. If there is nothing to ask any more, the
         *     turn is ended. 409 `stale` means that another worker has the turn, or that the turn has ended; 422 `no_provider`, that the server does not know the
         *     provider of the profile.
         */
        post: operations["compose_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show what a model saw: each message with its layer, its tokens, and the cards that it came from.
         * @description With `bodies=false` the messages are listed without their content; `context/messages` has the content in pages, and `context/request` has the
         *     bytes that were sent. If the same bytes cannot be rendered again, the answer is 409 `not_renderable`, with the reason.
         */
        get: operations["show_context"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context/chain": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Compare each model call of a turn with the call before it: what stayed the same, and which card broke the prompt cache.
         * @description A page has up to 200 calls, and fewer if they are very long.
         */
        get: operations["list_context_chain"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context/lint": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Check a model call for defects: those that providers answer with an error, and those that they silently bill for.
         * @description The rules are those of `waybill lint`. The call is compared with the call before it, to find breaks of the prompt cache.
         */
        get: operations["lint_context"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List the messages of a model call with their content, in pages.
         * @description A page has up to 4 MiB of messages. `after` is the number of the last message that you have, so a client that has the list of `context` with
         *     `bodies=false` can read any part of it.
         */
        get: operations["list_context_messages"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context/request": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Read the request of a model call, byte for byte as it was sent.
         * @description The BLAKE3 hash of the bytes is the receipt's `request_hash`, and it is the `ETag` of the answer. `If-None-Match` is answered with 304 if the
         *     client has these bytes; `Range: bytes=0-99` returns a part. If the same bytes cannot be rendered again, the answer is 409 `not_renderable`, with
         *     the reason. If credentials of a recorded call were withheld, they are not in the answer: then the `ETag` is the hash of what it has.
         */
        get: operations["show_context_request"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/context/verify": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Verify the model calls of a turn: compose each again from the record, and compare it with its receipt.
         * @description The request is compared byte for byte, by its hash. Each card is compared with its own hash, and all of them with the receipt. A page has up to
         *     200 calls, and fewer if they are very long.
         */
        post: operations["verify_context"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/edges": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the edges of a turn: how it was started, what its calls came to, and which batches of turns they became. */
        get: operations["list_edges"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Watch a turn, as server-sent events.
         * @description The events are `state`, `step`, `request` and, as the last one, `task`. Each has an id, after which an interrupted stream can be continued; its
         *     `data` is a `TurnEvent` as JSON. With `tokens=true` there are also `token` events: they have no id, and their `data` is a `TokenEvent`. The stream
         *     ends when the turn ends.
         */
        get: operations["watch_turn"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/finish": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Finish a turn: write its deliverable and end it.
         * @description 409 `stale` means that another worker has the turn, or that the turn has ended.
         */
        post: operations["finish_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/fork": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Fork a turn: run it again, starting at one of its model calls, with other cards or another profile.
         * @description The fork is a new turn. The recorded turn does not change.
         */
        post: operations["fork_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/forks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the forks of a turn, newest first: what was changed, and how each of them is. */
        get: operations["list_forks"];
        put?: never;
        /**
         * Fork a turn many times: several variants, each so many times, up to 100 forks.
         * @description All forks are started, or none: if one of them is refused, the answer says which variant it was.
         */
        post: operations["start_forks"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/give-back": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Give a turn back after a failed attempt.
         * @description The next attempt continues from the cards written so far. After three failed attempts without a new card, the turn ends as `failed`.
         */
        post: operations["give_back_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/graph": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show the graph of a turn: the turn and the turns below it, in columns.
         * @description Each list of the answer is a column with one entry for each turn. The first turn is the one that was asked for; the others come in the order in
         *     which they were started.
         */
        get: operations["show_graph"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/handovers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List what a turn was handed, part by part: by which rule, from which agent and box, and by which right. */
        get: operations["list_handovers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/publish": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Publish the deliverable of a turn as an `experience` document, so that agents can find it.
         * @description Agents find the document if their profile lists its folder. The turn must have ended as `success`.
         */
        post: operations["publish_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/receipts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List the receipts of a turn's model calls. A receipt records what the model saw. */
        get: operations["list_receipts"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/steps": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Write a step of a turn that the worker has claimed.
         * @description 409 `stale` means that another worker has the turn, or that the turn has ended.
         */
        post: operations["write_step"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Stop a turn.
         * @description The turn ends as `canceled`, and still has a deliverable.
         */
        post: operations["stop_turn"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/timeline": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show how a turn spent its time: in queues, in model calls, and waiting for tools, child turns and people.
         * @description The segments come from the record. That a worker was lost is recorded for every turn. When a worker took a turn up is recorded for turns that were
         *     started over HTTP; for the turns below them, the wait for a worker is shown until the next model call. With `tree`, up to 2,000 turns are shown.
         */
        get: operations["show_timeline"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/tokens": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Send a piece of what the model is writing to the callers that watch the turn.
         * @description Pieces are not kept: write the whole text with the step. Send a few pieces per second, each with the text since the last one. 409 `stale` means
         *     that another worker has the turn, or that the turn has ended.
         */
        post: operations["send_tokens"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/tree": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * List a turn and the turns that it started, directly or indirectly, up to 10,000.
         * @description Each turn comes after the one that started it. `truncated` says whether there are more.
         */
        get: operations["show_tree"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/turns/{turn}/why/{card}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Show why a turn has a card: how the card came into its boxes.
         * @description Each entry is one position of the card. It names the handover rule that put the card there, the sender, the box that the card was taken from, and
         *     the right to read that box. The list is empty if the turn does not have the card.
         */
        get: operations["why_card"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/worker/claim": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Claim turns of a target, to run them.
         * @description If no turn is ready, the request waits up to `wait_seconds` for one.
         */
        post: operations["claim_turns"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/worker/heartbeat": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Renew the lease of a worker.
         * @description 410 `lease_lost` means that the lease has expired, and that other workers may already have the worker's turns and calls. Stop working on them, and
         *     continue under a new worker name.
         */
        post: operations["keep_lease"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/projects/{project}/worker/leave": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * End the lease of a worker that shuts down.
         * @description Turns and calls that it still holds are given to other workers at once.
         */
        post: operations["leave"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /**
         * @description What the turn does after a call. `suspend`: it continues with the result. `terminate`: it ends with the result.
         * @enum {string}
         */
        After: "suspend" | "terminate";
        /**
         * @description What a worker does after an answer. `again`: compose the next request. `suspended`: the turn waits for its calls, and the worker no longer holds
         *     it. `ended`: the turn has ended.
         * @enum {string}
         */
        AfterAnswer: "again" | "suspended" | "ended";
        /**
         * @description What follows a call (WK-3).
         * @enum {string}
         */
        AfterExecution: "suspend" | "terminate";
        /** @description An agent of the project. */
        Agent: {
            agent_id: components["schemas"]["AgentId"];
            /** Format: date-time */
            created_at: string;
            ephemeral: boolean;
            memory_box_id?: components["schemas"]["BoxId"] | null;
            profile_name?: components["schemas"]["Name"] | null;
            /** Format: date-time */
            retired_at?: string | null;
            /** @description Status of the agent. `null` if the agent was created for a task and has no work now. */
            status?: string | null;
            worker_target: components["schemas"]["Target"];
        };
        /** Format: uuid */
        AgentId: string;
        /**
         * @description Status of an agent. `idle`: it has no turn. `dispatched`: its turn waits for a worker. `running`: a worker runs its turn. `suspended`: its turn
         *     waits for the answers to its calls.
         * @enum {string}
         */
        AgentStatus: "idle" | "dispatched" | "running" | "suspended";
        /** @description Whether any worker is alive for a target. Workers of a target may serve several projects, so they are not counted. */
        AliveWorkers: {
            /** @description Whether at least one worker is alive. It may be at work for other projects only. */
            alive: boolean;
            worker_target: components["schemas"]["Target"];
        };
        /** @description Model calls, tokens and money. A field that is `null` has no limit. */
        Amounts: {
            /**
             * Format: int64
             * @description Cost in millionths of a dollar.
             */
            microdollars?: number | null;
            /**
             * Format: int64
             * @description Model calls.
             */
            steps?: number | null;
            /**
             * Format: int64
             * @description Tokens, read and written.
             */
            tokens?: number | null;
        };
        /** @description What came of an answer. */
        AnswerTaken: {
            /** @description Whether the answer had been written before, so that this request changed nothing. */
            duplicate: boolean;
            /** @description What the worker does next. */
            next: components["schemas"]["AfterAnswer"];
            /** @description Id of the step. */
            step_id: components["schemas"]["StepId"];
        };
        Applied: {
            change: components["schemas"]["Change"];
            kind: components["schemas"]["Kind"];
            name: components["schemas"]["Name"];
            /** Format: int32 */
            version: number;
        };
        /** @description The stored document, and whether this request changed it. */
        AppliedDocument: {
            /** @description Whether this request created or changed the document. */
            changed: boolean;
            /** @description The document as it is stored now. */
            document: components["schemas"]["Document"];
        };
        /** @description Manifests of the resources to create or change. */
        Apply: {
            /** @description If true, nothing is written: the response shows what would change. If omitted, false. */
            dry_run?: boolean;
            /** @description Manifests, each `{"profile": …}`, `{"tool": …}`, `{"plan": …}`, `{"handoff_type": …}` or `{"settings": …}`. */
            manifests: components["schemas"]["Manifest"][];
        };
        /**
         * @description When a person must approve a call before it is made.
         * @enum {string}
         */
        Approval: "never" | "external" | "always";
        /** @description A package is sent once a person has approved it. */
        ApprovalRule: {
            /** Format: int64 */
            deadline_seconds?: number;
            /** @description What holds if no person decides in time. */
            default?: boolean;
            /** @description The caller that had the turn started may not decide. */
            four_eyes?: boolean;
            question: string;
            /** @description JSON Schema of the packages that need an approval. If empty, all do. */
            when?: {
                [key: string]: unknown;
            };
        };
        /** @description An artifact: one version of the content at a path. */
        Artifact: {
            /** @description Caller or agent that stored this version. */
            author_id?: string | null;
            /** Format: date-time */
            created_at: string;
            hash: components["schemas"]["ArtifactHash"];
            /** @description Whether `n_tokens` is an estimate. Large content is not counted: the number is estimated from its beginning. */
            is_estimate: boolean;
            /** @description Whether it is external content: it came from outside, or a turn that had seen external content wrote it. */
            is_external: boolean;
            media_type: string;
            /**
             * Format: int64
             * @description Number of tokens. `null` if the content is not text.
             */
            n_tokens?: number | null;
            path: components["schemas"]["ArtifactPath"];
            /** Format: int64 */
            size: number;
            /** Format: int32 */
            version: number;
        };
        ArtifactHash: string;
        ArtifactPath: string;
        /** Format: uuid */
        AuditId: string;
        /** @description A batch: child turns that one call started together. */
        Batch: {
            batch_id: components["schemas"]["BatchId"];
            /** Format: date-time */
            closed_at?: string | null;
            /** Format: date-time */
            created_at: string;
            /** Format: int32 */
            n_failed: number;
            /** Format: int32 */
            n_tasks: number;
            results_box_id?: components["schemas"]["BoxId"] | null;
            /** Format: int32 */
            stage: number;
            status: components["schemas"]["BatchStatus"];
            tool_call_id: components["schemas"]["ToolCallId"];
        };
        /** Format: uuid */
        BatchId: string;
        /**
         * @description State of a batch. `open`: tasks are still open. `success`: all tasks succeeded. `partial`: some tasks failed. `failed`: all tasks failed, or one
         *     failed and the batch has `fail_fast`. `timeout`: the deadline passed while tasks were open.
         * @enum {string}
         */
        BatchStatus: "open" | "success" | "partial" | "failed" | "timeout";
        /** @description An artifact that a turn stored after it had seen the card. */
        BlastArtifact: {
            /** @description Turn that stored it. */
            agent_turn_id: components["schemas"]["TurnId"];
            path: string;
            /** Format: int32 */
            version: number;
        };
        /** @description A model call in a blast radius. */
        BlastCall: {
            /**
             * Format: date-time
             * @description When the call was recorded.
             */
            at: string;
            /** @description `did` or `derived`. */
            how: components["schemas"]["BlastHow"];
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
        };
        /**
         * @description How something came to be in a blast radius. What comes first is more certain.
         * @enum {string}
         */
        BlastHow: "did" | "derived" | "could";
        /** @description What followed from cards. */
        BlastRadius: {
            /** @description Artifacts that were stored after that. */
            artifacts: components["schemas"]["BlastArtifact"][];
            /** @description There is more: the walk ended at the maximum number of turns. */
            is_cut: boolean;
            /** @description Cards that were written after seeing one of them. */
            n_derived_cards: number;
            /** @description Sessions whose memory was changed after that. */
            session_ids: components["schemas"]["SessionId"][];
            /** @description Turns that saw one of the cards, or could, in the order of their ids. */
            turns: components["schemas"]["BlastTurn"][];
        };
        /** @description A turn in a blast radius. */
        BlastTurn: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Calls that saw the card, or what was derived from it, in their order. */
            calls: components["schemas"]["BlastCall"][];
            deliverable_card_id?: components["schemas"]["CardId"] | null;
            /** @description How certain it is: the most certain of its calls; `could` if none saw anything. */
            how: components["schemas"]["BlastHow"];
            status: components["schemas"]["TurnStatus"];
        };
        BlockKey: string;
        /** @description A block, by its card. */
        BlockRef: {
            card_id: components["schemas"]["CardId"];
            /** @description Whether it was collected again for every step. */
            every_step: boolean;
            key: components["schemas"]["BlockKey"];
            /** @description Where it came from. */
            sources?: components["schemas"]["Provenance"][];
        };
        /**
         * @description Limits what a key may do within its scope. An empty list sets no limit, with two exceptions: a key of scope `worker`, `tool` or `developer` may
         *     use only the `targets` that are listed, and a key of scope `tool` may use only the artifacts below its `paths`.
         */
        Bounds: {
            /** @description Whether everything that the key starts or stores counts as external content. Use it for keys that pass on emails or web forms. If omitted, false. */
            external?: boolean;
            /** @description Paths of artifacts that the key may read and write. All paths below them are included. */
            paths?: components["schemas"]["ArtifactPath"][];
            /** @description Profiles whose turns the key may start. */
            profiles?: components["schemas"]["Name"][];
            /**
             * @description Targets from which the key may claim turns (the `worker_target` of profiles) and calls (the `target` of tools). A key of scope `developer` may
             *     apply only profiles and tools with these targets.
             */
            targets?: components["schemas"]["Target"][];
        };
        /** @description An entry of a box: one card, or a range of another box. */
        BoxEntry: {
            card_id?: components["schemas"]["CardId"] | null;
            /** Format: int64 */
            from_seq?: number | null;
            /**
             * Format: int64
             * @description The place of its first card in the box.
             */
            seq: number;
            source_box_id?: components["schemas"]["BoxId"] | null;
            /** Format: int64 */
            to_seq?: number | null;
        };
        /** Format: uuid */
        BoxId: string;
        /** @description Which boxes to show. */
        BoxIds: {
            /** @description Ids of the boxes to show, at most 1,000. */
            box_ids: components["schemas"]["BoxId"][];
        };
        /** @description The boxes that exist, and the ids of those that do not exist. */
        Boxes: {
            /** @description Boxes that exist, in the order of the request. */
            found: components["schemas"]["CardBox"][];
            /** @description Ids of boxes that do not exist in this project. */
            missing_box_ids: components["schemas"]["BoxId"][];
        };
        /** @description The first message that differs: from here on the prompt cache misses. */
        Break: {
            /** @description The cards that caused it: those of this message that the other call does not have at this place. */
            card_ids: components["schemas"]["CardId"][];
            left?: components["schemas"]["Layer"] | null;
            /** @description The number of the message, from 1; 0 means the tools, which come before all messages. */
            message: number;
            right?: components["schemas"]["Layer"] | null;
        };
        /** @description What a turn may still spend. A field that is `null` has no limit. A negative number means that the last step exceeded the limit. */
        Budget: {
            /** Format: int64 */
            microdollars?: number | null;
            /** Format: double */
            seconds?: number | null;
            /** Format: int64 */
            steps?: number | null;
            /** Format: int64 */
            tokens?: number | null;
        };
        /** @description A call that missed the cache. */
        CacheMiss: {
            agent_turn_id: components["schemas"]["TurnId"];
            /** Format: date-time */
            at: string;
            /**
             * Format: int64
             * @description How long after the call before it began, in seconds.
             */
            idle_seconds: number;
            /** Format: int64 */
            lost: number;
            /**
             * Format: int32
             * @description The number of the message that changed, from 1.
             */
            message?: number | null;
            /**
             * Format: int64
             * @description In millionths of a dollar. `null` if the price of the model is not known.
             */
            microdollars?: number | null;
            /** @description `PROVIDER/MODEL` */
            model: string;
            previous_step_id: components["schemas"]["StepId"];
            /** @description The call before it in the conversation. It belongs to another turn if a message changed. */
            previous_turn_id: components["schemas"]["TurnId"];
            profile_name?: string | null;
            /** @description What the provider says about it, in its own words: any JSON. */
            provider_says?: unknown;
            step_id: components["schemas"]["StepId"];
            why: components["schemas"]["CacheMissReason"];
        };
        /**
         * @description What changed between a call and the one before it in its conversation. If several things did, the first of these.
         * @enum {string}
         */
        CacheMissReason: "model" | "tools" | "system" | "message" | "context" | "parameters" | "idle" | "provider" | "no_cache";
        /** @description What the calls of a span of time lost. */
        CacheMisses: {
            /**
             * Format: date-time
             * @description Turns that began at this time or later are not looked at, because there were too many calls before it: continue with it as `since`. `null`
             *     if all turns of the span were looked at.
             */
            complete_until?: string | null;
            /** @description The 50 calls that lost most. */
            largest: components["schemas"]["CacheMiss"][];
            /** @description Whether there are more than 1,000 groups. The rest is left out. */
            more_rows: boolean;
            /** @description Days: newest first. Other groups: those that lost most first. */
            rows: components["schemas"]["CacheMissesRow"][];
        };
        /** @description One group of calls. */
        CacheMissesRow: {
            /**
             * Format: int64
             * @description Tokens of these that came from the provider's cache.
             */
            cached: number;
            /**
             * Format: int64
             * @description Tokens that the calls read, cached ones included.
             */
            input: number;
            /**
             * @description What changed, the day, the profile, `PROVIDER/MODEL`, or the id of the first turn of the conversation. `null`: calls without a miss, of rows by what
             *     changed.
             */
            key?: string | null;
            /**
             * Format: int64
             * @description Tokens that the call before had sent already, and that did not come from the cache. Where a message changed, this is the most that it can be: what
             *     follows that message may be new.
             */
            lost: number;
            /**
             * Format: int64
             * @description What these cost more than cached ones, in millionths of a dollar. `null` if no price is known for any of them.
             */
            microdollars?: number | null;
            /** Format: int64 */
            n_calls: number;
            /** Format: int64 */
            n_misses: number;
            /** @description The lost tokens, by what had changed. */
            why: {
                [key: string]: number;
            };
        };
        /** @description A call that a step makes. */
        CallOut: {
            /**
             * @description Whether the call must not be repeated. If the worker that claimed it is lost, the call is answered with `outcome_unknown`, and no other worker
             *     gets it. If omitted, false.
             */
            once?: boolean;
            /** @description Target (queue) from which the call is claimed, to be answered: the `target` of the tool. `pmo` is the orchestrator. */
            target: components["schemas"]["Target"];
            /**
             * Format: int32
             * @description Seconds until the call times out.
             */
            timeout_seconds: number;
            /** @description Id of the `tool.call` card of the call. The card must be one of `cards`. */
            tool_call_card_id: components["schemas"]["CardId"];
            /** @description Id of the call: a UUIDv7 that the worker generated within the last day. */
            tool_call_id: components["schemas"]["ToolCallId"];
        };
        /** @description A box without its cards. */
        CardBox: {
            agent_id?: components["schemas"]["AgentId"] | null;
            agent_turn_id?: components["schemas"]["TurnId"] | null;
            box_id: components["schemas"]["BoxId"];
            /** Format: date-time */
            created_at: string;
            /** @description Whether it holds content from outside, or content that was written after such content was seen. */
            has_external: boolean;
            /** Format: int64 */
            length: number;
        };
        /** @description A model call that read a card. */
        CardCall: {
            /** @description Turn of the model call. */
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Box in which the card was read: the context box or the output box of the turn. */
            box_id: components["schemas"]["BoxId"];
            /**
             * Format: int64
             * @description Position of the card in the box. The first position is 1.
             */
            place: number;
            /**
             * Format: date-time
             * @description When the context was read.
             */
            read_at: string;
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
        };
        /** @description A card to write. The worker generates its id, so that a repeated request does not write the card twice. */
        CardDraft: {
            /** @description Id of the card: a UUIDv7 that the worker generates. */
            card_id: components["schemas"]["CardId"];
            /** @description Content of the card: text or JSON, as the type requires. */
            content: unknown;
            /** @description Further metadata of the card. It is not part of the card's hash. */
            extra?: {
                [key: string]: unknown;
            };
            /** @description `assistant`, or `tool` for the answer of a tool. A worker cannot write cards with the role `user` or `system`. */
            role: components["schemas"]["Role"];
            tool_call_id?: components["schemas"]["ToolCallId"] | null;
            /**
             * Format: int32
             * @description Seconds until the content expires. If omitted, it does not expire.
             */
            ttl_seconds?: number | null;
            /** @description Type of the card, such as `agent.thought`, `tool.call`, `task.deliverable`. */
            type: string;
        };
        CardHash: string;
        /** Format: uuid */
        CardId: string;
        /** @description Which cards to show. */
        CardIds: {
            /** @description Ids of the cards to show, at most 1,000. */
            card_ids: components["schemas"]["CardId"][];
        };
        /**
         * @description Where a card came from, according to the kernel, not to its writer.
         * @enum {string}
         */
        CardOrigin: "user" | "model" | "tool" | "external";
        CardType: string;
        /** @description The cards that exist, and the ids of those that do not exist or did not fit. */
        Cards: {
            /** @description Cards that exist, in the order of the request. */
            found: components["schemas"]["Reading"][];
            /** @description Ids of cards that did not fit into this response. Request them again. */
            left_card_ids: components["schemas"]["CardId"][];
            /** @description Ids of cards that do not exist in this project. */
            missing_card_ids: components["schemas"]["CardId"][];
        };
        /**
         * @description Whether the cards that a call saw are still what they were.
         * @enum {string}
         */
        CardsVerdict: "ok" | "erased" | "missing" | "mismatch";
        /**
         * @description Why a call could not use all of the call before.
         * @enum {string}
         */
        Cause: "first_call" | "other_model" | "tools_changed" | "prefix_broke" | "not_renderable";
        /**
         * @description What applying a manifest does to the resource: it is created, changed, or unchanged because it was the same before.
         * @enum {string}
         */
        Change: "created" | "changed" | "unchanged";
        /** @description What was changed for a fork. */
        Changed: {
            /** @description Cards of the recorded turn that got new content. */
            cards?: components["schemas"]["CardId"][];
            profile?: components["schemas"]["ChangedProfile"] | null;
        };
        /** @description A card that gets new content in the fork. */
        ChangedCard: {
            /** @description Id of the card. The turn must have had this card when it made the model call. */
            card_id: components["schemas"]["CardId"];
            /** @description New content, in the form that the type of the card requires. */
            content: unknown;
        };
        /** @description How the profile was changed for a fork. */
        ChangedProfile: {
            name?: components["schemas"]["Name"] | null;
            /** @description JSON merge patch that was applied. `null` if there was none. */
            patch?: {
                [key: string]: unknown;
            } | null;
        };
        Channel: string;
        /** @description What a child turn was given, and what it and the turns below it have used. */
        ChildBudget: {
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Whether it has ended. What it had left went back to its parent then, unless the parent had ended before. */
            ended: boolean;
            given?: components["schemas"]["Given"] | null;
            /** @description What it and the turns below it have used. */
            spent: components["schemas"]["Used"];
        };
        /** @description Which worker claims, from which target, and how many calls. */
        Claim: {
            /**
             * Format: double
             * @description Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
             *     omitted, 30.
             */
            lease_seconds?: number;
            /**
             * Format: int32
             * @description Maximum number of calls to claim. If omitted, 1.
             */
            most?: number;
            /** @description Target (queue) to claim from: the `target` of tools. */
            target: components["schemas"]["Target"];
            /**
             * Format: double
             * @description Seconds to wait if there is no work, at most 30. If omitted, the request does not wait.
             */
            wait_seconds?: number;
            /**
             * @description Name that the worker process chooses for itself. Two processes must not use the same name. After a process has lost its lease, it must use a
             *     new name.
             */
            worker: string;
        };
        /**
         * @description Identifies one claim of a turn or of a call. Each claim has a new, higher token, which cannot be guessed. In JSON it is a string, because a
         *     JavaScript number cannot hold all its digits.
         */
        ClaimToken: string;
        /** @description Which worker claims, from which target, how many turns, and what the answer brings along. */
        ClaimTurns: {
            /** @description What each turn brings along, up to 4 MiB of cards and 4 MiB of profiles in all. If omitted, only ids. */
            include?: components["schemas"]["Include"][];
            /**
             * Format: double
             * @description Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
             *     omitted, 30.
             */
            lease_seconds?: number;
            /**
             * Format: int32
             * @description Maximum number of turns to claim. If omitted, 1.
             */
            most?: number;
            /** @description Target (queue) to claim from: the `worker_target` of profiles. */
            target: components["schemas"]["Target"];
            /**
             * Format: double
             * @description Seconds to wait if there is no work, at most 30. If omitted, the request does not wait.
             */
            wait_seconds?: number;
            /**
             * @description Name that the worker process chooses for itself. Two processes must not use the same name. After a process has lost its lease, it must use a
             *     new name.
             */
            worker: string;
        };
        /** @description The calls that the worker has claimed. */
        ClaimedCalls: {
            /** @description Claimed calls. Empty if no call was waiting. */
            calls: components["schemas"]["OneCall"][];
        };
        /** @description A profile as the turn was dispatched with it, and its tools. */
        ClaimedProfile: components["schemas"]["Profile"] & {
            /** @description Manifests of the tools in `allowed_tools`, as they are now. */
            tools: components["schemas"]["Tool"][];
        };
        /** @description A turn that a worker has claimed. The worker holds it until it finishes the turn, gives it back, lets it wait for calls, or loses its lease. */
        ClaimedTurn: {
            /** @description Id of the turn. */
            agent_turn_id: components["schemas"]["TurnId"];
            batch_id?: components["schemas"]["BatchId"] | null;
            /** @description Channel to which the events of the turn are published. */
            channel: components["schemas"]["Channel"];
            /** @description Box with the cards that the turn was given to read. */
            context_box_id: components["schemas"]["BoxId"];
            /** @description Fence to send with everything that you write to the turn. */
            fence: components["schemas"]["TurnFence"];
            limits?: components["schemas"]["Budget"] | null;
            /** @description Why the turn was ready to be claimed. */
            message_type: components["schemas"]["MessageType"];
            /**
             * Format: int32
             * @description How often the turn was taken from a worker whose lease had expired or that wrote nothing for too long. A new card of the turn resets it to 0.
             */
            n_lost_leases: number;
            /** @description Box with the cards that the turn has written, the answers to its calls, and messages that callers sent to it. */
            output_box_id: components["schemas"]["BoxId"];
            parent_agent_turn_id?: components["schemas"]["TurnId"] | null;
            profile?: components["schemas"]["ClaimedProfile"] | null;
            profile_box_id?: components["schemas"]["BoxId"] | null;
            profile_name?: components["schemas"]["Name"] | null;
            /**
             * @description With `query` in `include`: the cards of `query_card_ids`, and last the card with the fields or the JSON Schema of the result, if there is one.
             *     Absent if they did not fit into the response: read them by their ids.
             */
            query?: components["schemas"]["Reading"][] | null;
            /** @description Ids of the cards that say what the turn must do. */
            query_card_ids: components["schemas"]["CardId"][];
            /**
             * Format: int32
             * @description Number of turns above this one: 0 for a turn that a caller started, 1 for a turn that such a turn started, and so on.
             */
            recursion_depth: number;
            /**
             * Format: int32
             * @description Number of failed attempts since the turn last wrote a card.
             */
            retry_count: number;
            session_id?: components["schemas"]["SessionId"] | null;
            /** @description Whether the turn was stopped. The worker must then end it as `canceled`. */
            stop_asked: boolean;
        };
        /** @description The turns that the worker has claimed. */
        ClaimedTurns: {
            /** @description Claimed turns. Empty if no turn was ready. */
            turns: components["schemas"]["ClaimedTurn"][];
        };
        /** @description When to compact, and how much to leave as it is. */
        Compaction: {
            /**
             * Format: int32
             * @description The share of the budget at which to compact.
             */
            at_percent: number;
            /** @description The recent part that is left as it is. */
            keep: components["schemas"]["Tokens"];
            /** @description Less than this is not worth a summary. */
            least: components["schemas"]["Tokens"];
        };
        /** @description What a run came to, compared with the first one. */
        ComparedRun: components["schemas"]["Outcome"] & {
            context?: components["schemas"]["FirstDifference"] | null;
            /** @description Whether it delivered the same as the first run. `null` for the first run itself, and if one of the two has no deliverable that can be shown. */
            same_deliverable?: boolean | null;
        };
        /** @description Which turn to compose a request for. */
        Compose: {
            /**
             * Format: int32
             * @description Which of the profile's models to ask: 0 is its own model, 1 its first fallback, and so on. If omitted, 0.
             */
            fallback?: number;
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
        };
        /** @description What the turn needs next. */
        ComposedStep: (components["schemas"]["ToAsk"] & {
            /** @enum {string} */
            next: "ask";
        }) | (components["schemas"]["HasEnded"] & {
            /** @enum {string} */
            next: "ended";
        });
        /** @description Which arguments become cards, in this order, and what goes along. */
        ContextPacking: {
            inherit_context?: components["schemas"]["InheritContext"];
            pack_arguments?: components["schemas"]["PackArgument"][];
        };
        /** @description The API key to create. */
        CreateKey: {
            /**
             * @description Limits what the key may do within its scope. Keys of scope `worker`, `tool` and `developer` must list their `targets`. If omitted, there are
             *     no further limits.
             */
            bounds?: components["schemas"]["Bounds"];
            /**
             * Format: int32
             * @description Seconds until the key expires. If omitted, it is valid until it is revoked.
             */
            expires_in_seconds?: number | null;
            /** @description Name of the key. At most two valid keys can have the same name, so that a new key can replace an old one. */
            name: components["schemas"]["Name"];
            /** @description Scope of the key: what it may do. */
            scope: components["schemas"]["Scope"];
        };
        /** @description The project to create. */
        CreateProject: {
            /** @description Slug of the project, a short name for people: 1 to 63 characters (a-z, 0-9 and `-`), beginning with a letter or digit. */
            slug: string;
            /** @description Whether to create a key of scope `admin` too. If omitted, false: a caller on this machine needs none. */
            with_key?: boolean;
        };
        /** @description The API key that was created. */
        CreatedKey: components["schemas"]["Key"] & {
            /** @description The key itself. It is shown only once. */
            key: string;
        };
        /** @description The project that was created. */
        CreatedProject: components["schemas"]["Project"] & {
            /** @description With `with_key`: a key of scope `admin`. It is shown only once. */
            key?: string | null;
        };
        /** @description The decision about a request. */
        Decide: {
            /** @description Answer to the question, as text or other JSON. It is required if the decision is `answered`. */
            answer?: unknown;
            /** @description `approved` or `rejected` for an approval, `answered` for a question. */
            decision: components["schemas"]["Verb"];
            /** @description Note for the agent that asked, such as the reason for the decision. If omitted, there is none. */
            note?: string | null;
        };
        /**
         * @description How a request was decided.
         * @enum {string}
         */
        Decision: "approved" | "rejected" | "answered" | "expired";
        /**
         * @description Whether a decision counts. `decided`: it does. `duplicate`: the same decision was recorded before. `gone`: it came too late.
         * @enum {string}
         */
        DecisionOutcome: "decided" | "duplicate" | "gone";
        /** @description One defect of a request, and where it is. */
        Defect: {
            /** @description Number of the message, from 1, as the provider got it. 0 means the tools, or system text that is not a message. */
            message: number;
            /** @description Kind of the defect. */
            rule: components["schemas"]["LintRule"];
            /** @description What was found, and what to do. */
            what: string;
        };
        /** @description Whom an agent may delegate to: profiles that have one of the tags or one of the names. */
        DelegationPolicy: {
            target_profiles?: components["schemas"]["Name"][];
            target_tags?: components["schemas"]["Name"][];
        };
        /** @description New title and labels of a session. */
        Describe: {
            /** @description New labels. If omitted, the labels stay. */
            labels?: string[] | null;
            /** @description New title. If omitted, the title stays. */
            title?: string | null;
        };
        /** @description How the right call differs from the left one. */
        Diff: {
            first_break?: components["schemas"]["Break"] | null;
            /** @description Tokens of each layer, where they differ. */
            layers: {
                [key: string]: components["schemas"]["Sides"];
            };
            left_tokens: components["schemas"]["Tokens"];
            /** @description In both, but not in the same order: the fewest that would have to move. */
            moved: components["schemas"]["CardId"][];
            /** @description Cards that only the left call has. */
            only_left: components["schemas"]["Line"][];
            /** @description Cards that only the right call has. */
            only_right: components["schemas"]["Line"][];
            /** @description The messages of both calls, in the order of the right one. What only the left one has stands where it was. */
            ops: components["schemas"]["Op"][];
            right_tokens: components["schemas"]["Tokens"];
            /** @description How many messages and tokens at the beginning are the same. */
            same_messages: number;
            same_tokens: components["schemas"]["Tokens"];
        };
        Digest: string;
        /** @description The turn that was started or queued, or that gets the message. */
        DispatchResult: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            session_id?: components["schemas"]["SessionId"] | null;
            status: components["schemas"]["DispatchStatus"];
            trace_id: string;
            turn_epoch?: components["schemas"]["TurnEpoch"] | null;
        };
        /**
         * @description What a request to start a turn did. `accepted`: a worker can claim the turn. `queued`: the turn waits for another turn of its agent. `steered`: no
         *     turn was started; the running turn gets the message.
         * @enum {string}
         */
        DispatchStatus: "accepted" | "queued" | "steered";
        /** @description A document that agents can find, in its newest version, without its text. */
        Document: {
            agent_turn_id?: components["schemas"]["TurnId"] | null;
            card_id?: components["schemas"]["CardId"] | null;
            /** @description Embedding model that made the vectors of the document. `null` means that the document has none, and is found only by its words. */
            embedded_by?: string | null;
            hash: components["schemas"]["ArtifactHash"];
            /** @description Whether it is external content: it came from outside, or a turn that had seen external content wrote it. */
            is_external: boolean;
            kind: components["schemas"]["DocumentKind"];
            /** Format: int32 */
            n_chunks: number;
            /** Format: int64 */
            n_tokens: number;
            path: components["schemas"]["ArtifactPath"];
            title: string;
            /** Format: date-time */
            updated_at: string;
            /** Format: int32 */
            version: number;
        };
        /**
         * @description Kind of a document. `knowledge`: a person stored it. `experience`: it is a published deliverable of a turn.
         * @enum {string}
         */
        DocumentKind: "knowledge" | "experience";
        /** @description Confirmation that the lease has ended. */
        Done: {
            /** @description Always true. */
            done: boolean;
        };
        /**
         * @description One edge of a turn: a recorded request, or the response to it. Examples are the start and the end of the turn, a message from a caller, a call,
         *     and its answer.
         */
        Edge: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            card_id?: components["schemas"]["CardId"] | null;
            /**
             * Format: uuid
             * @description The turn, the call, the message, or for a `join` the batch.
             */
            correlation_id: string;
            /** Format: date-time */
            created_at: string;
            edge_phase: string;
            primitive: string;
            /** Format: int32 */
            recursion_depth: number;
            source_agent_id?: components["schemas"]["AgentId"] | null;
            status?: string | null;
        };
        /**
         * @description What calling it twice does (WK-7).
         * @enum {string}
         */
        Effect: "pure" | "idempotent" | "once";
        /** @description Which model makes vectors. */
        Embedding: {
            api_key?: components["schemas"]["SecretRef"] | null;
            model: string;
            provider: components["schemas"]["Name"];
        };
        /**
         * @description How a turn ends. Every turn that has ended has a deliverable, also if it has failed.
         * @enum {string}
         */
        End: "success" | "failed" | "canceled" | "timeout";
        /** @description Confirmation that turns have ended. */
        Ended: {
            /** @description Whether the same request was carried out before, so that this one changed nothing. */
            duplicate: boolean;
        };
        /** @description The card that was deleted or that will expire. */
        EndedCard: {
            /** @description Id of the card. */
            card_id: components["schemas"]["CardId"];
        };
        /** @description An entry of the audit log: one management action. */
        Entry: {
            action: string;
            /**
             * @description Caller that did it: `key:NAME` (API key), `user:SUBJECT` (token of the identity provider), `cli:USER` (command line) or `loopback` (`waybill
             *     dev` without a key).
             */
            actor: string;
            /** @description IP address of the caller. `null` means a local connection to the database. */
            address?: string | null;
            audit_id: components["schemas"]["AuditId"];
            /** Format: date-time */
            created_at: string;
            /** @description Database login that wrote the entry. */
            db_role: string;
            detail: unknown;
            subject: string;
        };
        /** Format: uuid */
        EventId: string;
        /**
         * @description What an event is about.
         * @enum {string}
         */
        EventKind: "task" | "step" | "state" | "request";
        /** @description When a card expires. */
        Expiry: {
            /**
             * Format: int32
             * @description Seconds until the card expires, at most ten years.
             */
            ttl_seconds: number;
        };
        /**
         * @description What became of a message.
         * @enum {string}
         */
        Fate: "same" | "changed" | "only_left" | "only_right" | "moved";
        FileRule: {
            media_type?: string | null;
            path: string;
            schema?: {
                [key: string]: unknown;
            } | null;
            within?: string | null;
        };
        /** @description How the turn ends, and the last cards to write. */
        Finish: {
            /** @description Cards to write. The last one must be the `task.deliverable`. */
            cards: components["schemas"]["CardDraft"][];
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
            /**
             * @description Whether the worker has seen external content that is not in a card of the turn's boxes, such as a website. The cards are then labelled as
             *     external. If omitted, false.
             */
            saw_external?: boolean;
            /**
             * Format: int64
             * @description How many cards of the output box the worker has read. If a caller has sent the turn a message after these, the turn does not end, and the
             *     response is 409 `unseen`: read the output box and continue. If omitted, and `status` is `success`, the server assumes that the worker has read
             *     everything up to the last step.
             */
            seen?: number | null;
            /** @description Outcome of the turn. */
            status: components["schemas"]["End"];
            step_id?: components["schemas"]["StepId"] | null;
            usage?: components["schemas"]["UsageSaid"] | null;
        };
        /** @description Where two contexts differ first. */
        FirstDifference: {
            /** @description Cards that caused the difference. */
            card_ids: components["schemas"]["CardId"][];
            layer?: components["schemas"]["Layer"] | null;
            /**
             * @description Number of the first message that differs, from 1. 0 means the tools, which come before all messages. `null` if the context is the same, or
             *     only continues where the first one ends.
             */
            message?: number | null;
            /** @description Messages at the beginning that are the same. */
            same_messages: number;
        };
        FolderRule: {
            at: string;
        };
        /** @description The session that was forgotten. */
        Forgotten: {
            /** @description Id of the session. */
            session_id: components["schemas"]["SessionId"];
        };
        /** @description What to change in the fork. If you change nothing, the turn runs again as it was. */
        Fork: {
            /** @description Cards that get new content in the fork. */
            cards?: components["schemas"]["ChangedCard"][];
            /** @description Whether to call tools and agents again. If omitted, they answer as they did in the recorded turn. */
            live_tools?: boolean;
            profile_name?: components["schemas"]["Name"] | null;
            /**
             * @description JSON merge patch for the profile. It may change the prompt and the parameters of the model, and remove rights. Adding rights, or using a patch
             *     together with `live_tools`, needs a key of scope `admin`. If omitted, the profile is not changed.
             */
            profile_patch?: {
                [key: string]: unknown;
            } | null;
            step_id?: components["schemas"]["StepId"] | null;
        };
        /** @description A turn that does a recorded one again. */
        ForkOfTurn: {
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description What was changed. */
            change: components["schemas"]["Changed"];
            /** Format: date-time */
            created_at: string;
            /** @description Caller that started the fork. */
            forked_by?: string | null;
            /** @description Whether tools are called again, instead of replaying their recorded answers. */
            live_tools: boolean;
            source_step_id?: components["schemas"]["StepId"] | null;
        };
        /** @description The new turn that runs the fork, and its agent. */
        Forked: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Step of the model call from which the fork starts. */
            source_step_id: components["schemas"]["StepId"];
        };
        /** @description The forks to start: each variant, so many times. */
        Forks: {
            /**
             * Format: int32
             * @description How often each variant is run. All variants together have at most 100 forks. If omitted, 1.
             */
            times?: number | null;
            /** @description What to change, for each variant. */
            variants: components["schemas"]["Fork"][];
        };
        /** @description A chunk (passage) of a document that a search returned. */
        FoundChunk: {
            agent_turn_id?: components["schemas"]["TurnId"] | null;
            content: string;
            /** Format: int32 */
            from_line: number;
            hash: components["schemas"]["ArtifactHash"];
            heading: string;
            is_external: boolean;
            /** Format: int32 */
            n_tokens: number;
            path: components["schemas"]["ArtifactPath"];
            /** Format: int32 */
            seq: number;
            title: string;
            /** Format: int32 */
            to_line: number;
            /** Format: int32 */
            version: number;
        };
        /**
         * @description What was found. `call` is a tool call.
         * @enum {string}
         */
        FoundKind: "turn" | "card" | "box" | "session" | "agent" | "batch" | "call" | "artifact";
        /** @description A thing that was found. */
        FoundThing: {
            /** @description Its path below `/v1/projects/PROJECT`. */
            href: string;
            /** @description Its id, or the path of an artifact. */
            id: string;
            kind: components["schemas"]["FoundKind"];
            /**
             * @description What people know it by: the first line of an instruction, the title of a session, the type of a card, the profile of an agent, or the name of
             *     the tool that was called. `null` if there is nothing.
             */
            title?: string | null;
        };
        /** @description A project's own `framework__context`. Receipts name its version. */
        FrameworkText: {
            text: components["schemas"]["Template"];
            version: string;
        };
        /** @description What must be true before a package is sent. `at` and `within` are JSON Pointers into the package, in which `*` stands for each entry. */
        Gate: {
            approval?: components["schemas"]["ApprovalRule"] | null;
            /** @description Artifacts that must exist without being named. */
            files?: components["schemas"]["FileRule"][];
            /** @description Where it names folders. All that is below them goes along. */
            folders?: components["schemas"]["FolderRule"][];
            /** @description Where the package names artifacts. Each of them must exist. */
            paths?: components["schemas"]["PathRule"][];
            priority?: components["schemas"]["PriorityRule"] | null;
            /** @description Warnings that the sender gets. They do not refuse the package. */
            warnings?: components["schemas"]["WarningRule"][];
        };
        /** @description A right to give. */
        Give: {
            /** @description Agent that gets the right. */
            agent_id: components["schemas"]["AgentId"];
            /** @description Box that it may read. */
            box_id: components["schemas"]["BoxId"];
            /** @description Why the right is given, in 1 to 1,000 characters. It is kept on record. */
            reason: string;
            /**
             * Format: int64
             * @description How many of the first cards of the box it may read. If omitted, all cards, including those added later.
             */
            upto?: number | null;
        };
        /** @description Why the attempt failed, and how long to wait before the next one. */
        GiveBack: {
            /**
             * Format: double
             * @description Seconds to wait before the next attempt, at most 3,600. If omitted, 0.
             */
            backoff_seconds?: number;
            /** @description Error that ended the attempt. */
            error: string;
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
        };
        /** @description What a turn was given to spend when it was started: of what its parent may spend, its share. A field that is omitted sets no limit. */
        Given: {
            /**
             * Format: date-time
             * @description The time by which it ends.
             */
            deadline_at?: string | null;
            /**
             * Format: int64
             * @description Cost in millionths of a dollar.
             */
            microdollars?: number | null;
            /**
             * Format: int64
             * @description Model calls.
             */
            steps?: number | null;
            /**
             * Format: int64
             * @description Tokens, read and written.
             */
            tokens?: number | null;
        };
        /** @description What happens to the turn after the failed attempt. */
        GivenBack: {
            /**
             * @description `armed`: there will be another attempt. `ended`: this was the last attempt, and the turn has ended as `failed`. `stale`: another worker has
             *     the turn, or it had already ended.
             */
            outcome: string;
        };
        /** @description A right to read that was granted outside of any handover. */
        Grant: {
            agent_id: components["schemas"]["AgentId"];
            box_id: components["schemas"]["BoxId"];
            /** Format: date-time */
            created_at: string;
            grant_id: components["schemas"]["GrantId"];
            granted_by: string;
            reason: string;
            /** Format: date-time */
            revoked_at?: string | null;
            /**
             * Format: int64
             * @description How many of its cards may be read. `null` means all of it, including what is appended later.
             */
            upto?: number | null;
        };
        /** Format: uuid */
        GrantId: string;
        /**
         * @description A turn and the turns below it, in columns: each list from `parent` to `forked` has one entry for each of `ids`, in the same order. An index counts
         *     from 0.
         */
        Graph: {
            /** @description Ids of parents that are not on this page. */
            above: components["schemas"]["TurnId"][];
            /** @description The batch that it is a task of: an index into `batches`. -1 if there is none. */
            batch: number[];
            batches: components["schemas"]["GraphBatch"][];
            /** @description Of these, tokens that the provider had cached. */
            cached: number[];
            /** @description When it was started, in milliseconds since 1970. */
            created_ms: number[];
            /** @description The call that asked for it: an index into `edges`. -1 if there is none. */
            edge: number[];
            /** @description Calls that asked for turns of this page. */
            edges: components["schemas"]["GraphEdge"][];
            /** @description Whether its context or its output has external content. */
            external: boolean[];
            /** @description When it ended, in milliseconds since 1970. -1 while it is open. */
            finished_ms: number[];
            /** @description Whether it is a fork. */
            forked: boolean[];
            /**
             * @description Ids of the turns. The turn that was asked for is the first one of the first page. The others follow in the order of their ids, which is
             *     the order in which they were started.
             */
            ids: components["schemas"]["TurnId"][];
            /** @description Tokens that it read. */
            input: number[];
            /** @description Its cost in millionths of a dollar. */
            microdollars: number[];
            /** @description Number of turns on this page. */
            n: number;
            next?: components["schemas"]["TurnId"] | null;
            /** @description Tokens that it wrote. */
            output: number[];
            /** @description The turn that started it: an index into `ids` continued by `above`. -1 for the turn that was asked for. */
            parent: number[];
            /** @description Its profile: an index into `profiles`. -1 if it has none. */
            profile: number[];
            /** @description Names of profiles. */
            profiles: components["schemas"]["Name"][];
            status: components["schemas"]["TurnStatus"][];
            /** @description Number of its steps. */
            steps: number[];
            /** @description Its place in the batch. -1 if there is none. */
            task_index: number[];
            /** @description Whether turns are left out: below a turn that is no root, 10,000 are shown. Ask for the graph of its root to see all. */
            truncated: boolean;
        };
        /** @description A batch of a graph: turns that one call started together, and that are joined when they have ended. */
        GraphBatch: {
            batch_id: components["schemas"]["BatchId"];
            /**
             * Format: date-time
             * @description When its tasks were joined.
             */
            closed_at?: string | null;
            /** Format: date-time */
            created_at: string;
            /** Format: date-time */
            deadline_at: string;
            /** @description Whether the batch ends with the first task that fails. */
            fail_fast: boolean;
            /** Format: int32 */
            n_tasks: number;
            status: components["schemas"]["BatchStatus"];
            /** @description `null` if the call can no longer be shown. */
            tool?: string | null;
            /** @description The call that it belongs to. */
            tool_call_id: components["schemas"]["ToolCallId"];
        };
        /** @description A call that asked for turns. */
        GraphEdge: {
            /** @description The turn that made the call. */
            agent_turn_id: components["schemas"]["TurnId"];
            /**
             * Format: date-time
             * @description `null` if no answer is recorded.
             */
            answered_at?: string | null;
            /** Format: date-time */
            asked_at: string;
            /** @description How the call ended. */
            status?: string | null;
            /** @description `null` if the call can no longer be shown. */
            tool?: string | null;
            tool_call_id: components["schemas"]["ToolCallId"];
        };
        /** @description One part of what a turn was handed. */
        Handed: {
            arg_key?: string | null;
            /** Format: date-time */
            created_at: string;
            /**
             * Format: int64
             * @description The place of its first card in the context box, and how many cards it has.
             */
            from_place: number;
            /** Format: int64 */
            n_cards: number;
            /**
             * Format: int32
             * @description Numbers the parts of one turn, from 0.
             */
            part: number;
            /** @description The rule of the handover: `argument`, `memory`, `output`, `box`, `session` or `parent`. */
            rule: string;
            source_agent_id?: components["schemas"]["AgentId"] | null;
            source_box_id?: components["schemas"]["BoxId"] | null;
            source_profile?: components["schemas"]["Name"] | null;
            tool_suffix: string;
            /** Format: int64 */
            upto?: number | null;
            via?: string | null;
        };
        /** @description A kind of handoff package: what it must say, and what must be true before it is sent (HO-7). */
        HandoffType: {
            advised_tokens?: components["schemas"]["Tokens"] | null;
            description?: string;
            gate?: components["schemas"]["Gate"];
            /** @description A larger package is refused. */
            max_tokens?: components["schemas"]["Tokens"];
            name: components["schemas"]["Name"];
            /** @description JSON Schema of what it has beyond what every package has. */
            schema?: {
                [key: string]: unknown;
            };
        };
        /** @description How the context of a turn is made from the arguments of a call. */
        Handover: {
            context_packing_config?: components["schemas"]["ContextPacking"];
            target_profile_config?: components["schemas"]["TargetProfile"];
        };
        /** @description How the turn has ended. */
        HasEnded: {
            /** @description Outcome of the turn. */
            status: components["schemas"]["End"];
        };
        /** @description What an agent is doing: its status, its current turn, and how many turns are queued. */
        Head: {
            active_agent_turn_id?: components["schemas"]["TurnId"] | null;
            /** Format: int32 */
            n_queued: number;
            status: components["schemas"]["AgentStatus"];
            turn_epoch: components["schemas"]["TurnEpoch"];
        };
        /** @description The worker whose lease is renewed. */
        Heartbeat: {
            /**
             * Format: double
             * @description Length of the lease in seconds, 1 to 300. If the worker sends no heartbeat for this time, its turns and calls are given to other workers. If
             *     omitted, 30.
             */
            lease_seconds?: number;
            /** @description Name of the worker. */
            worker: string;
        };
        /** @description A range of a box in another box. */
        Heir: {
            /** @description The box that took the range, and the place of its first card there. */
            box_id: components["schemas"]["BoxId"];
            /**
             * Format: int64
             * @description The first and the last place of the range in the box that was asked for.
             */
            from_seq: number;
            /** Format: int64 */
            place: number;
            /** Format: int64 */
            to_seq: number;
        };
        /** @description All turns and calls that the worker holds. If the response to a claim was lost, you find the claimed turns and calls here. */
        Held: {
            /** @description Calls that the worker holds. */
            calls: components["schemas"]["OneCall"][];
            /** @description Turns that the worker holds. */
            turns: components["schemas"]["ClaimedTurn"][];
        };
        /** @description Why the project is put under a legal hold. */
        Hold: {
            /** @description The reason, in 1 to 1,000 characters. It is kept in the audit. */
            reason: string;
        };
        /** @description A place where a card stands. */
        Holding: {
            box_id: components["schemas"]["BoxId"];
            /** Format: int64 */
            place: number;
        };
        HostPattern: string;
        /** @enum {string} */
        HttpMethod: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
        /**
         * @description A request over HTTP. Arguments that the address names go into it; of the rest, `query` names those that go into the query, and what is
         *     left is the body. Without a body all of the rest is the query.
         */
        HttpTool: {
            headers?: {
                [key: string]: components["schemas"]["ToolHeader"];
            };
            method?: components["schemas"]["HttpMethod"];
            query?: string[];
            /** @description Such as `https://tickets.example/queues/{queue}`: an argument stands for a whole part of the path. */
            url: components["schemas"]["UrlTemplate"];
        };
        /**
         * @description State of an open turn. `queued`: another turn of its agent comes first. `pending`: a worker can claim it. `processing`: a worker runs it.
         *     `deferred`: it waits for the answers to its calls, or for a time, such as that of its next attempt.
         * @enum {string}
         */
        InboxStatus: "queued" | "pending" | "processing" | "deferred";
        /**
         * @description What to bring along with each claimed turn. `query`: the cards that say what to do. `profile`: the profile with its tools. `limits`: what is left
         *     to spend.
         * @enum {string}
         */
        Include: "query" | "profile" | "limits";
        /** @description What goes along by reference. */
        InheritContext: {
            /** @description Arguments that name a box, or a list of boxes. */
            include_boxes_from_args?: string[];
            /** @description Whether the receiver sees who sent it. If omitted, false. */
            include_parent?: boolean;
        };
        /**
         * @description Tools that Waybill itself offers to a model.
         * @enum {string}
         */
        InternalTool: "submit_result" | "delegate_async" | "launch_principal" | "ask_expert" | "fork_join" | "map_reduce" | "provision_agent" | "update_todo" | "send_handoff" | "ask_person" | "list_artifacts" | "plan_reading" | "read_artifact" | "search_artifacts" | "write_artifact" | "search_knowledge" | "read_plan";
        /** @description An API key, without its secret. */
        Key: {
            /**
             * @description Limits what a key may do within its scope. An empty list sets no limit, with two exceptions: a key of scope `worker`, `tool` or `developer` may
             *     use only the `targets` that are listed, and a key of scope `tool` may use only the artifacts below its `paths`.
             */
            bounds: {
                /** @description Whether everything that the key starts or stores counts as external content. Use it for keys that pass on emails or web forms. If omitted, false. */
                external?: boolean;
                /** @description Paths of artifacts that the key may read and write. All paths below them are included. */
                paths?: components["schemas"]["ArtifactPath"][];
                /** @description Profiles whose turns the key may start. */
                profiles?: components["schemas"]["Name"][];
                /**
                 * @description Targets from which the key may claim turns (the `worker_target` of profiles) and calls (the `target` of tools). A key of scope `developer` may
                 *     apply only profiles and tools with these targets.
                 */
                targets?: components["schemas"]["Target"][];
            };
            /** Format: date-time */
            created_at: string;
            /** Format: date-time */
            expires_at?: string | null;
            key_id: components["schemas"]["KeyId"];
            name: components["schemas"]["Name"];
            /** Format: date-time */
            revoked_at?: string | null;
            scope: components["schemas"]["Scope"];
        };
        /** Format: uuid */
        KeyId: string;
        /** @description A turn to start, and the key under which it is started once. */
        KeyedStart: {
            /**
             * @description Idempotency key of this start. If you send the same start again with the same key within 24 hours, the outcome names the same turn. The same
             *     key with another start is refused.
             */
            key: string;
            /** @description The turn to start, as for a single one. */
            start: components["schemas"]["Start"];
        };
        /**
         * @description Kind of a resource.
         * @enum {string}
         */
        Kind: "tool" | "profile" | "plan" | "handoff_type" | "settings";
        /** @description Labels of a turn: for each name one value. */
        Labels: {
            [key: string]: string;
        };
        /** @description What became of the turns that were started in the last hour. */
        LastHour: {
            /** @description Whether all of them are counted. If not, the newest 10,000 turns and the newest 50,000 steps are. */
            is_all: boolean;
            /**
             * Format: int64
             * @description What they have cost so far, in millionths of a dollar.
             */
            microdollars: number;
            /** Format: int64 */
            n_canceled: number;
            /** Format: int64 */
            n_failed: number;
            /** Format: int64 */
            n_started: number;
            /** Format: int64 */
            n_success: number;
            /** Format: int64 */
            n_timeout: number;
        };
        /** @description Where a message comes from: `system_prompt`, `checkpoint_messages`, `query`, `steps`, or a block, whose name ends in `__context`. */
        Layer: string;
        /** @description The worker whose lease ends. */
        Leave: {
            /** @description Name of the worker. */
            worker: string;
        };
        /** @description A block whose source failed. */
        LeftOut: {
            key: components["schemas"]["BlockKey"];
            why: string;
        };
        /** @description What a turn may spend, together with all turns that it starts. A field that is omitted sets no limit. */
        Limits: {
            /**
             * Format: int32
             * @description Maximum cost in millionths of a dollar.
             */
            microdollars?: number | null;
            /**
             * Format: int32
             * @description Maximum time in seconds, from the request to start the turn until its end. Time in which the turn waits counts too.
             */
            seconds?: number | null;
            /**
             * Format: int32
             * @description Maximum number of model calls.
             */
            steps?: number | null;
            /**
             * Format: int32
             * @description Maximum number of tokens that models read and write.
             */
            tokens?: number | null;
        };
        /** @description A card of one of the two calls. */
        Line: {
            card_id: components["schemas"]["CardId"];
            layer: components["schemas"]["Layer"];
        };
        /** @description A model call, compared with the one before it in the same turn. */
        Link: {
            break?: components["schemas"]["LinkBreak"] | null;
            /** @description Why the provider found less in its prompt cache than it could, in its own words: any JSON. `null` if it did not say. */
            cache_miss?: unknown;
            /**
             * Format: int32
             * @description Tokens that the provider read from its prompt cache. `null` if that was not recorded.
             */
            cached_tokens?: number | null;
            cause?: components["schemas"]["Cause"] | null;
            /**
             * Format: double
             * @description Seconds from the end of the call before to the beginning of this one. `null` for the first call.
             */
            gap_seconds?: number | null;
            /** @description Tokens of the call, as Waybill counts them. */
            n_tokens: components["schemas"]["Tokens"];
            same_tokens?: components["schemas"]["Tokens"] | null;
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
        };
        /** @description The first message that differs from the call before: from here on the prompt cache misses. */
        LinkBreak: {
            /** @description Cards that caused it. */
            card_ids: components["schemas"]["CardId"][];
            layer?: components["schemas"]["Layer"] | null;
            /** @description Number of the message, from 1. 0 means the tools, which come before all messages. */
            message: number;
        };
        /**
         * @description The kinds of defects.
         * @enum {string}
         */
        LintRule: "orphaned_result" | "call_without_result" | "doubled_input" | "empty_content" | "system_in_the_middle" | "broken_alternation" | "cache_break";
        /** @description The defects of a model call. */
        Linted: {
            before_step_id?: components["schemas"]["StepId"] | null;
            /** @description Defects, in the order in which they occur. Empty if there are none. */
            findings: components["schemas"]["Defect"][];
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
        };
        /** @description Which model is called, and how. */
        LlmConfig: {
            api_key?: components["schemas"]["SecretRef"] | null;
            /** @description Models that are called in this order, if the ones before them cannot answer. */
            fallbacks?: components["schemas"]["LlmConfig"][];
            model: string;
            /** @description Parameters of the provider's API, such as `temperature`: any JSON. They are sent as they are. */
            params?: {
                [key: string]: unknown;
            };
            provider: components["schemas"]["Name"];
        };
        /** @description The key to log in with. */
        LogIn: {
            /** @description API key: `wb_…`. */
            key: string;
        };
        /** @description A browser session: who has logged in, and what they may do in which project. */
        Login: {
            /** @description Who logged in, as the audit names it: `key:NAME` or `user:SUBJECT`. */
            actor: string;
            /**
             * Format: date-time
             * @description When the session ends: after 12 hours, or when its key or the login at the identity provider ends.
             */
            expires_at: string;
            /** @description Projects that the session reaches. With an API key, its own project. */
            projects: components["schemas"]["LoginProject"][];
        };
        /** @description A project that a browser session reaches. */
        LoginProject: {
            /** @description Id of the project. */
            project_id: components["schemas"]["ProjectId"];
            /** @description What the session may do there. */
            scope: components["schemas"]["Scope"];
            /** @description Slug of the project. */
            slug: string;
        };
        /** @description One document of a manifest: `profile:`, `tool:`, `plan:`, `handoff_type:` or `settings:`, and what belongs to it. */
        Manifest: {
            profile: components["schemas"]["Profile"];
        } | {
            tool: components["schemas"]["Tool"];
        } | {
            plan: components["schemas"]["Plan"];
        } | {
            handoff_type: components["schemas"]["HandoffType"];
        } | {
            settings: components["schemas"]["Settings"];
        };
        /** @description A tool of an MCP server: one that the operator of Waybill has named, or one at an address. */
        McpTool: {
            headers?: {
                [key: string]: components["schemas"]["ToolHeader"];
            };
            /** @description The hash of the server's description of the tool when it was added: see [`schema_hash`]. A tool with another hash is another tool. */
            schema_hash: string;
            server?: components["schemas"]["Name"] | null;
            /** @description The server's name for the tool. If omitted, the same name as here. */
            tool?: string | null;
            url?: components["schemas"]["UrlTemplate"] | null;
        };
        /** @description The caller of a request, and what it may do. */
        Me: {
            /** @description Who the caller is, as the audit names it: `key:NAME` or `user:SUBJECT`. */
            actor: string;
            /** @description What its key is for, beside its scope. */
            bounds: components["schemas"]["Bounds"];
            /**
             * Format: date-time
             * @description When its key or token ends. `null` if it has no end.
             */
            expires_at?: string | null;
            /** @description Its project. */
            project: components["schemas"]["Project"];
            /** @description What the caller may do. */
            scope: components["schemas"]["Scope"];
        };
        /** @description How much an agent sees, and in which order. */
        Memory: {
            /** @description The limit for everything that the model reads. If omitted, 100000. */
            budget?: components["schemas"]["Tokens"];
            compaction?: components["schemas"]["Compaction"] | null;
            /**
             * Format: int32
             * @description How many cards at the beginning of the context are always shown. If omitted, 0.
             */
            n_pinned?: number;
            order?: components["schemas"]["Order"];
        };
        /**
         * @description Why a turn became ready for a worker. `turn`: it was started. `tool_result`: the last call that it waited for was answered. `timeout`: that call
         *     timed out. `stop` is not used.
         * @enum {string}
         */
        MessageType: "turn" | "tool_result" | "timeout" | "stop";
        /**
         * @description What a model answered. `receipt` or `request_hash` is required: with `receipt`, an answer can be written even if the turn got a message, or its
         *     sources changed, while the model worked.
         */
        ModelAnswer: {
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
            receipt?: components["schemas"]["Receipt"] | null;
            request_hash?: components["schemas"]["Digest"] | null;
            /** @description Body of the provider's answer: the whole event stream as one text, or, if the parameters of the profile set `stream` to false, the JSON object. */
            response: unknown;
            seal?: components["schemas"]["Digest"] | null;
            /** @description `step_id` of the composed request. It is the idempotency key: sending the answer again changes nothing. */
            step_id: components["schemas"]["StepId"];
            usage?: components["schemas"]["UsageSaid"] | null;
        };
        Name: string;
        /** @description The answer to a call. */
        NewReport: {
            after_execution?: components["schemas"]["After"] | null;
            /** @description Id of the `tool.result` card: a UUIDv7 that the worker generates. If you repeat the request, send the same id. */
            card_id: components["schemas"]["CardId"];
            /** @description `claim_token` of the claimed call. */
            claim_token: components["schemas"]["ClaimToken"];
            /**
             * @description Result of the call. If it has more tokens than `result_tokens` in the project's settings, the server stores it as an artifact, and the turn
             *     gets only its beginning and its end.
             */
            result: unknown;
            /** @description Outcome of the call, such as `success` or `failed`. */
            status: string;
            /** @description Name of the worker that claimed the call. */
            worker: string;
        };
        /** @description One step of a turn. Its id is its idempotency key: sending the step again changes nothing. */
        NewStep: {
            /** @description Calls that the step makes. */
            calls?: components["schemas"]["CallOut"][];
            /** @description Cards that the step writes. */
            cards?: components["schemas"]["CardDraft"][];
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
            /**
             * @description Whether the worker has seen external content that is not in a card of the turn's boxes, such as a website. What the turn writes is then
             *     labelled as external. If omitted, false.
             */
            saw_external?: boolean;
            /** @description Id of the step: a UUIDv7 that the worker generated within the last day. */
            step_id: components["schemas"]["StepId"];
            /**
             * @description Whether the turn then waits for the answers to its calls, including calls of earlier steps. While it waits, the worker does not hold it. If
             *     omitted, false.
             */
            suspend?: boolean;
            usage?: components["schemas"]["UsageSaid"] | null;
        };
        /** @description A piece of what the model is writing. */
        NewTokens: {
            /**
             * Format: int32
             * @description Attempt of the step, beginning with 1. If you call the model again for the same step, use the next number: the text then begins from the
             *     start.
             */
            attempt: number;
            /** @description Fence of the turn, as the claim returned it. */
            fence: components["schemas"]["TurnFence"];
            /** @description Id of the step that is being written. Use the same id when you write the step. */
            step_id: components["schemas"]["StepId"];
            /** @description The piece: what the model has written since the piece before. */
            text: string;
        };
        /** @description What a project does now. */
        Now: {
            /** Format: date-time */
            at: string;
            /** @description Whether all open turns and calls are counted. If not, 10,000 of each are. */
            is_all: boolean;
            last_hour: components["schemas"]["LastHour"];
            /**
             * Format: int64
             * @description Calls that wait for a person.
             */
            n_asking: number;
            /**
             * Format: int64
             * @description Turns behind another turn of their agent.
             */
            n_queued: number;
            /**
             * Format: int64
             * @description Turns that a worker can claim.
             */
            n_ready: number;
            /**
             * Format: int64
             * @description Turns that a worker runs.
             */
            n_running: number;
            /**
             * Format: int64
             * @description Turns that wait: for the answers to their calls, or for a time.
             */
            n_waiting: number;
            /**
             * Format: date-time
             * @description Since when the oldest of the turns waits that a worker can claim. `null` if there is none.
             */
            oldest_ready_at?: string | null;
            /** @description What is waited for. Turns are counted for `retry`, `worker` and `queue`; calls for `person`, `child` and `tool`. */
            waiting: components["schemas"]["Waiting"][];
            /** @description The targets of the project's profiles and tools, and whether any worker is alive for each. */
            workers: components["schemas"]["AliveWorkers"][];
        };
        /** @description Cards that are not shown, and why. */
        Omitted: {
            card_ids: components["schemas"]["CardId"][];
            reason: components["schemas"]["Reason"];
        };
        /** @description A call that the worker has claimed and must answer before `deadline_at`. */
        OneCall: {
            /** @description Agent of the turn that makes the call. */
            agent_id: components["schemas"]["AgentId"];
            /** @description Turn that makes the call. */
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Arguments as JSON text, exactly as the model wrote them. They match the schema of the tool. */
            arguments: string;
            /** @description Token of the claim. Send it with the answer. */
            claim_token: components["schemas"]["ClaimToken"];
            /**
             * Format: date-time
             * @description When the call times out.
             */
            deadline_at: string;
            /** @description Idempotency key of the call. It stays the same if another worker gets the call later: do the work only once for each key. */
            idempotency_key: components["schemas"]["ToolCallId"];
            /**
             * Format: int32
             * @description How often the call was taken from a worker because its lease had expired.
             */
            n_lost_leases: number;
            /** @description User for whom the turn was started, if the caller named one. */
            on_behalf_of?: string | null;
            /** @description Id of the call. */
            tool_call_id: components["schemas"]["ToolCallId"];
            /** @description Name of the tool. */
            tool_name: components["schemas"]["Name"];
        };
        /** @description The grant. */
        OneGrant: {
            /** @description The grant. */
            grant_id: components["schemas"]["GrantId"];
        };
        /** @description Receipt of one model call. It records what the model saw, as references to boxes and cards, with versions and hashes. */
        OneReceipt: {
            /** @description The receipt. */
            receipt: components["schemas"]["Receipt"];
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
        };
        /** @description One message of the two calls. A system prompt, a block and the query are the same message if their layer is; others if their card is. */
        Op: {
            /** @description The number of the message in the left call, from 1. */
            left?: number | null;
            op: components["schemas"]["Fate"];
            /** @description The number of the message in the right call, from 1. */
            right?: number | null;
            /** @description The tokens of the message: in the right call, if that has it. */
            tokens: components["schemas"]["Tokens"];
        };
        /** @description A session to open. */
        Open: {
            /** @description Labels of the session. If omitted, a new session has none. */
            labels?: string[] | null;
            session_id?: components["schemas"]["SessionId"] | null;
            /** @description Title of the session. If omitted, a new session has none. */
            title?: string | null;
        };
        /**
         * @description The order of what the model sees.
         * @enum {string}
         */
        Order: "layered" | "cache_first";
        /** @description Box and position at which a card was written. Other boxes can include it from there by reference. */
        Origin: {
            box_id: components["schemas"]["BoxId"];
            /** Format: int64 */
            seq: number;
        };
        /** @description What a run came to: a turn, with all turns that it started. */
        Outcome: {
            agent_turn_id: components["schemas"]["TurnId"];
            /** Format: int64 */
            cached_tokens: number;
            /** @description What the turn delivered: a text, or any JSON. `null` if it has not delivered yet, or if the content can no longer be shown. */
            deliverable?: unknown;
            deliverable_card_id?: components["schemas"]["CardId"] | null;
            /**
             * Format: int64
             * @description Tokens that models read, cached ones included.
             */
            input_tokens: number;
            /**
             * Format: int64
             * @description Cost in millionths of a dollar.
             */
            microdollars: number;
            /** Format: int64 */
            n_steps: number;
            /** @description Turns of the run. */
            n_turns: number;
            /**
             * Format: int64
             * @description Calls without an answer, because the recorded turn did not make them: here the fork left the recorded path.
             */
            not_recorded: number;
            /** Format: int64 */
            output_tokens: number;
            /**
             * Format: double
             * @description Seconds from the start to the end. `null` while the turn is open.
             */
            seconds?: number | null;
            status: components["schemas"]["TurnStatus"];
            /** @description Tools that were called, and how often. A fork has the calls before its first step too. */
            tools: {
                [key: string]: number;
            };
            /** @description Whether the run has more cards or turns than were counted. */
            truncated: boolean;
        };
        /** @description One argument that becomes a card, if it is there. */
        PackArgument: {
            arg_key: string;
            as_card_type?: components["schemas"]["CardType"];
            /** @description Metadata of the card. `role` says who speaks, by default the user. */
            card_metadata?: {
                [key: string]: unknown;
            };
        };
        /** @description The handoff package to check. */
        Package: {
            /** @description The package: `version` "2.0", `handoff_type`, `timestamp`, and what its type requires. */
            package: {
                [key: string]: unknown;
            };
        };
        /** @description One page of a list. */
        Page_Agent: {
            /** @description Entries of this page. */
            items: components["schemas"]["Agent"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Artifact: {
            /** @description Entries of this page. */
            items: components["schemas"]["Artifact"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_BoxEntry: {
            /** @description Entries of this page. */
            items: components["schemas"]["BoxEntry"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_CardCall: {
            /** @description Entries of this page. */
            items: components["schemas"]["CardCall"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Document: {
            /** @description Entries of this page. */
            items: components["schemas"]["Document"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Entry: {
            /** @description Entries of this page. */
            items: components["schemas"]["Entry"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Grant: {
            /** @description Entries of this page. */
            items: components["schemas"]["Grant"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Handed: {
            /** @description Entries of this page. */
            items: components["schemas"]["Handed"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Heir: {
            /** @description Entries of this page. */
            items: components["schemas"]["Heir"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Holding: {
            /** @description Entries of this page. */
            items: components["schemas"]["Holding"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Key: {
            /** @description Entries of this page. */
            items: components["schemas"]["Key"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Link: {
            /** @description Entries of this page. */
            items: components["schemas"]["Link"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Placed: {
            /** @description Entries of this page. */
            items: components["schemas"]["Placed"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Project: {
            /** @description Entries of this page. */
            items: components["schemas"]["Project"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Refusal: {
            /** @description Entries of this page. */
            items: components["schemas"]["Refusal"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_SeenMessage: {
            /** @description Entries of this page. */
            items: components["schemas"]["SeenMessage"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Session: {
            /** @description Entries of this page. */
            items: components["schemas"]["Session"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_SessionChange: {
            /** @description Entries of this page. */
            items: components["schemas"]["SessionChange"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_ShownFork: {
            /** @description Entries of this page. */
            items: components["schemas"]["ShownFork"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_ShownRequest: {
            /** @description Entries of this page. */
            items: components["schemas"]["ShownRequest"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Sight: {
            /** @description Entries of this page. */
            items: components["schemas"]["Sight"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_Summary: {
            /** @description Entries of this page. */
            items: components["schemas"]["Summary"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_TaskShown: {
            /** @description Entries of this page. */
            items: {
                agent_id: components["schemas"]["AgentId"];
                agent_turn_id: components["schemas"]["TurnId"];
                deliverable_card_id?: components["schemas"]["CardId"] | null;
                error?: string | null;
                status: components["schemas"]["TurnStatus"];
                /** Format: int32 */
                task_index: number;
            }[];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        /** @description One page of a list. */
        Page_VerifiedCall: {
            /** @description Entries of this page. */
            items: components["schemas"]["VerifiedCall"][];
            /** @description Value of `after` for the next page. `null` on the last page. */
            next?: string | null;
        };
        PathRule: {
            at: string;
            media_type?: string | null;
            /** @description JSON Schema of the artifact's content. */
            schema?: {
                [key: string]: unknown;
            } | null;
            /** @description The folder that it is relative to. */
            within?: string | null;
        };
        /** @description A card of a box, with its position. */
        Placed: {
            /** @description If the card occurs again among the positions that were read: where it was written, for each of these occurrences. */
            also?: components["schemas"]["Origin"][];
            /** @description Box and position at which the card was written. */
            origin: components["schemas"]["Origin"];
            /**
             * Format: int64
             * @description Position of the card in the box that was read, counted from 1.
             */
            place: number;
            /** @description The card. If it has expired or was deleted, only its id, its hash and the reason. */
            reading: components["schemas"]["Reading"];
        };
        /** @description A document that agents and people read. */
        Plan: {
            /** @description Any JSON. */
            document: unknown;
            name: components["schemas"]["Name"];
        };
        /** @description The order of layers, and the budget. */
        Policy: {
            /** @description The tokens of everything that the model reads. */
            budget: components["schemas"]["Tokens"];
            order: components["schemas"]["Order"];
            /** @description What a provider adds to each message. */
            per_message: components["schemas"]["Tokens"];
        };
        /** @description Each of `items` says at `at` how urgent it is: `high`, `medium` or `low`. */
        PriorityRule: {
            at: string;
            items: string;
        };
        /** @description Why a request failed, and what to do. */
        Problem: {
            /** @description Short code for programs, such as `not_found`. It stays the same in later versions. */
            code: string;
            /** @description What is wrong in this case, and what to do. */
            detail: string;
            /**
             * Format: int32
             * @description Seconds to wait before a retry. Absent if no time is known.
             */
            retry_after?: number | null;
            /**
             * Format: int32
             * @description HTTP status code.
             */
            status: number;
            /** @description Short name of the kind of problem. It is the same for every problem of that kind. */
            title: string;
            /** @description URI of the kind of problem: `urn:waybill:CODE`. */
            type: string;
        };
        /**
         * @description How an agent works, as far as that decides what it sees.
         * @enum {string}
         */
        Process: "sequential" | "dynamic" | "hierarchical" | "react" | "mapreduce_planner" | "mapreduce_worker" | "mapreduce_reducer";
        /** @description What an agent is: prompt, tools, model, policies. */
        Profile: {
            /** @description Tools of Waybill itself that it may call. */
            allowed_internal_tools?: components["schemas"]["InternalTool"][];
            /** @description Tools of the project that it may call. */
            allowed_tools?: components["schemas"]["Name"][];
            /** @description Whom it may delegate to. If empty, it may not delegate (PM-10). */
            delegation_policy?: components["schemas"]["DelegationPolicy"];
            description?: string;
            experience?: components["schemas"]["Shelf"] | null;
            knowledge?: components["schemas"]["Shelf"] | null;
            limits?: components["schemas"]["Limits"] | null;
            llm_config: components["schemas"]["LlmConfig"];
            memory?: components["schemas"]["Memory"];
            /** @description Tools one of which a turn must end with. If empty, text is the deliverable. */
            must_end_with?: components["schemas"]["Name"][];
            name: components["schemas"]["Name"];
            process?: components["schemas"]["Process"];
            /** @description Folders of artifacts that it may read in their newest version. It may always read what it was handed and what it wrote. */
            readable_artifacts?: components["schemas"]["ArtifactPath"][];
            summariser?: components["schemas"]["Name"] | null;
            system_prompt_template: components["schemas"]["Template"];
            tags?: components["schemas"]["Name"][];
            /** @description The workers that run it. */
            worker_target: components["schemas"]["Target"];
            /** @description Folders of artifacts that it may write to. */
            writable_artifacts?: components["schemas"]["ArtifactPath"][];
        };
        /** @description Id and slug of a project. */
        Project: {
            project_id: components["schemas"]["ProjectId"];
            slug: string;
        };
        /** Format: uuid */
        ProjectId: string;
        /** @description Where a piece that is shown came from. The receipt keeps it with the block. */
        Provenance: {
            /** @description The hash of the document's content. */
            hash: string;
            /** @description Path of the document. */
            path: string;
            /**
             * Format: int32
             * @description Which piece of the document.
             */
            seq: number;
            /** Format: int32 */
            version: number;
        };
        /** @description The permanent agent to add. */
        Provision: {
            /** @description Profile of the new agent. */
            profile_name: components["schemas"]["Name"];
        };
        /** @description The agent that was added. */
        Provisioned: {
            /** @description Id of the new agent. */
            agent_id: components["schemas"]["AgentId"];
        };
        /** @description The path and title under which a deliverable is published. */
        Publish: {
            /** @description Path of the document. */
            path: components["schemas"]["ArtifactPath"];
            /** @description Title of the document. If omitted, it has none. */
            title?: string;
        };
        /** @description What to search for. */
        Question: {
            /** @description Folders to search. */
            folders: components["schemas"]["ArtifactPath"][];
            /** @description Kind of the documents to search: `knowledge` (stored by people) or `experience` (published deliverables of turns). If omitted, `knowledge`. */
            kind?: components["schemas"]["DocumentKind"];
            /**
             * Format: int32
             * @description Maximum number of passages to return, at most 20. If omitted, 5.
             */
            most?: number;
            /** @description Question, or words to search for. */
            question: string;
        };
        /** @description A card. If it has expired or was deleted (`state: gone`), its content is not shown. */
        Reading: {
            /** Format: uuid */
            card_id: string;
            content?: unknown;
            /** Format: date-time */
            created_at?: string;
            /** Format: date-time */
            expires_at?: string;
            /** Format: date-time */
            gone_at?: string;
            hash: string;
            /** @description Metadata of a card. Only `type`, `role` and `author_id` are part of the card's hash. */
            metadata?: {
                author_id?: string | null;
                parent_step_id?: components["schemas"]["StepId"] | null;
                role: components["schemas"]["Role"];
                step_id?: components["schemas"]["StepId"] | null;
                trace_id?: string | null;
                type: string;
            } & {
                [key: string]: unknown;
            };
            /** Format: int32 */
            n_tokens?: number;
            /**
             * @description Where a card came from, according to the kernel, not to its writer.
             * @enum {string}
             */
            origin?: "user" | "model" | "tool" | "external";
            reason?: string;
            salt?: string;
            /** @enum {string} */
            state: "live" | "gone";
            /** Format: uuid */
            tool_call_id?: string;
            tool_calls?: {
                arguments: string;
                /** @description Id that the model provider gave to the call. It is sent back only to that provider. */
                provider_call_id?: string | null;
                tool_call_id: components["schemas"]["ToolCallId"];
                tool_name: string;
            }[];
            /** Format: int32 */
            ttl_seconds?: number;
            /** @enum {string} */
            why?: "expired" | "deleted" | "erased";
        };
        /**
         * @description Why a card is not shown.
         * @enum {string}
         */
        Reason: "budget" | "open_call" | "gone" | "orphan" | "repeated" | "covered" | "not_for_the_model";
        /** @description What one model call saw. */
        Receipt: {
            adapter: string;
            /** Format: int32 */
            adapter_version: number;
            blocks: components["schemas"]["BlockRef"][];
            /** @description The hash over the hashes of all cards that were read. It can be verified even if a card was erased since. */
            cards_hash: components["schemas"]["Digest"];
            framework_version: string;
            /** @description Positions of the context box whose cards had ended. */
            gone?: components["schemas"]["Span"][];
            /** @description Spans of the context box. */
            history: components["schemas"]["Span"][];
            /** @description Blocks whose source failed. */
            left_out?: components["schemas"]["LeftOut"][];
            n_messages: number;
            /** @description Cards that were read and left out. */
            n_omitted?: number;
            n_pinned: number;
            n_tokens: components["schemas"]["Tokens"];
            /** @description The span of the output box. */
            output: components["schemas"]["Span"];
            /** @description Parameters of the profile that were sent as they are: any JSON. */
            params: {
                [key: string]: unknown;
            };
            /** @description How it was composed and rendered. */
            policy: components["schemas"]["Policy"];
            /** Format: int32 */
            policy_version: number;
            query_card_ids: components["schemas"]["CardId"][];
            /** Format: date-time */
            read_at: string;
            recorded?: components["schemas"]["Recording"] | null;
            /** @description Whether a worker sent the request over HTTP: that it sent these bytes is its own word. */
            reported?: boolean;
            /** @description The hash of the request, byte for byte. */
            request_hash: components["schemas"]["Digest"];
            session_summary_card_id?: components["schemas"]["CardId"] | null;
            system_prompt_card_id?: components["schemas"]["CardId"] | null;
            tokenizer: string;
            tools_card_id?: components["schemas"]["CardId"] | null;
        };
        /** @description How a call was recorded that an agent elsewhere made: it was not composed by Waybill, but passed on its way to the provider, or was imported from a log. */
        Recording: {
            /** @description The compression in which the body was sent. The hash is that of the body without it. */
            encoding?: string | null;
            /** @description Name of the provider, as the operator's file has it. */
            provider: string;
            rests_on: components["schemas"]["RestsOn"];
            /** @description What the request says besides its system text, tools and messages. */
            skeleton_card_id: components["schemas"]["CardId"];
            /** @description What the provider calls the state that the call builds on. */
            state_id?: string | null;
            /** @description Credentials in the body that were not stored, by their paths. The hash is that of the body with them. */
            withheld?: string[];
        };
        /** @description What was asked for and refused. */
        Refusal: {
            agent_id: components["schemas"]["AgentId"];
            box_id: components["schemas"]["BoxId"];
            /** Format: date-time */
            created_at: string;
            refusal_id: components["schemas"]["RefusalId"];
            tool_suffix: string;
            /** @description `not_found` or `forbidden`. */
            why: string;
        };
        /** Format: uuid */
        RefusalId: string;
        /** @description A start that was refused. It has left nothing. */
        RefusedOne: {
            /** @description Key of the start. */
            key: string;
            /** @description Why it was refused, and what to do. */
            problem: components["schemas"]["Problem"];
        };
        /** @description How many versions of the artifact were removed. */
        Removed: {
            /**
             * Format: int64
             * @description Number of versions that were removed.
             */
            n_removed: number;
        };
        /** @description The document that was removed. Searches no longer find it. */
        RemovedDocument: {
            /** @description Path of the document. */
            path: components["schemas"]["ArtifactPath"];
        };
        /** @description The profile that was removed. */
        RemovedProfile: {
            /** @description Name of the profile. */
            name: components["schemas"]["Name"];
        };
        /** @description The tool that was removed. */
        RemovedTool: {
            /** @description Name of the tool. */
            name: components["schemas"]["Name"];
        };
        /**
         * @description Whether an answer counts. `applied`: it does. `duplicate`: the same answer was applied before. `dropped`: it came too late.
         * @enum {string}
         */
        ReportOutcome: "applied" | "duplicate" | "dropped";
        /** @description What happened to the answer to a call. */
        Reported: {
            agent_turn_id: components["schemas"]["TurnId"];
            /**
             * @description `applied`: the turn gets the answer. `duplicate`: the same answer was applied before. `dropped`: it came too late, because the call had been
             *     answered, had timed out, or its turn had ended.
             */
            outcome: components["schemas"]["ReportOutcome"];
            /** @description Whether this was the last answer that the turn waited for. Workers can then claim the turn again. */
            resumed: boolean;
        };
        /** @description An approval or a question for a person. It is the content of a `request` card. */
        RequestContent: {
            /** @description Details for the person who decides, such as the handoff package or the tool call. */
            about?: unknown;
            /** Format: int64 */
            deadline_seconds: number;
            /**
             * @description What counts as the decision if no person decides in time: `true` or `false` for an approval, the answer for a question. If omitted, the
             *     approval is not given, or the question has no answer.
             */
            default?: unknown;
            /** @description If true, the caller that started the turn must not decide: another person has to. */
            four_eyes?: boolean;
            kind: components["schemas"]["RequestKind"];
            question: string;
        };
        /** @description What happened to a decision. */
        RequestDecided: {
            agent_turn_id?: components["schemas"]["TurnId"] | null;
            decision_card_id: components["schemas"]["CardId"];
            /** @description `decided`: the decision counts. Over HTTP, a decision that comes too late gets 404 `not_found` instead of `gone`. */
            outcome: components["schemas"]["DecisionOutcome"];
        };
        /** @description How a request was decided. */
        RequestDecision: {
            /** Format: date-time */
            at: string;
            /** @description Caller that decided: `key:NAME`, `user:SUBJECT` or `cli:USER`. `deadline` if no person decided in time. */
            by: string;
            /** @description Card with the whole decision. For a question it has the answer. */
            card_id: components["schemas"]["CardId"];
            decision: components["schemas"]["Decision"];
            /** @description Note of the person who decided. `null` if there is none, or if it can no longer be shown. */
            note?: string | null;
        };
        /**
         * @description What a person is asked for. `approval`: yes or no. `question`: an answer in words.
         * @enum {string}
         */
        RequestKind: "approval" | "question";
        /**
         * @description Whether the request of a call can be composed again.
         * @enum {string}
         */
        RequestVerdict: "ok" | "mismatch" | "not_renderable";
        /** @description A resource of the project, in its newest version. */
        Resource: {
            card_id: components["schemas"]["CardId"];
            kind: components["schemas"]["Kind"];
            name: components["schemas"]["Name"];
            /** Format: date-time */
            updated_at: string;
            /** Format: int32 */
            version: number;
            worker_target?: components["schemas"]["Target"] | null;
        };
        /**
         * @description What the claim of a recorded call rests on.
         * @enum {string}
         */
        RestsOn: "bytes" | "provider" | "import";
        /** @description A field that the result must have. */
        ResultField: {
            /** @description What the field must contain. */
            description: string;
            /** @description Name of the field. */
            name: string;
        } & {
            [key: string]: unknown;
        };
        /** @description What a project keeps. */
        Retention: {
            /**
             * Format: int32
             * @description Months for which content is kept now. `null` means for ever.
             */
            content_months?: number | null;
            /**
             * Format: date-time
             * @description Since when it is under a hold.
             */
            held_since?: string | null;
            /** @description Why the project is under a legal hold: nothing is removed. `null` means that it is not. */
            hold_reason?: string | null;
            /**
             * Format: date-time
             * @description When a shortening takes effect. Until then it can be set back. `null` means that there is none.
             */
            next_at?: string | null;
            /**
             * Format: int32
             * @description Months for which content is kept from `next_at` on.
             */
            next_content_months?: number | null;
            /**
             * Format: int32
             * @description Months for which the record is kept from `next_at` on.
             */
            next_record_months?: number | null;
            /**
             * Format: int32
             * @description Months for which the record is kept now. `null` means for ever.
             */
            record_months?: number | null;
            /**
             * Format: date-time
             * @description When the last walk over the project came to its end.
             */
            walked_at?: string | null;
        };
        /** @description For how long content and record are kept. */
        RetentionMonths: {
            /**
             * Format: int32
             * @description Months for which content is kept: what cards say. If omitted, for ever.
             */
            content_months?: number | null;
            /**
             * Format: int32
             * @description Months for which the record is kept: turns with their steps, receipts, boxes and cards. At least as many as `content_months`. If omitted, for
             *     ever.
             */
            record_months?: number | null;
        };
        /** @description What walks would remove now. */
        RetentionPlan: {
            /**
             * Format: int64
             * @description Boxes of these turns.
             */
            boxes: number;
            /**
             * Format: int64
             * @description Bytes of that content, as they are stored.
             */
            bytes: number;
            /**
             * Format: int64
             * @description Places in these boxes. The cards there are removed too, unless another box holds them.
             */
            cards: number;
            /**
             * Format: date-time
             * @description Content of cards that were written before this time would be removed. `null` means none.
             */
            content_before?: string | null;
            /**
             * Format: int64
             * @description Cards whose content would be removed.
             */
            contents: number;
            /** @description Whether everything was counted. `false` means that there is more: the project is too large to be counted in two seconds. */
            is_all: boolean;
            /** @description What would stay beyond its time, by the reason: turns, and contents that open turns read. */
            kept: {
                [key: string]: number;
            };
            /**
             * Format: date-time
             * @description Turns that ended before this time would be removed. `null` means none.
             */
            record_before?: string | null;
            /**
             * Format: int64
             * @description Turns that would be removed.
             */
            turns: number;
        };
        /**
         * @description Role in which a model sees the card. `author_id` has no influence on it: it only records who wrote the card.
         * @enum {string}
         */
        Role: "system" | "user" | "assistant" | "tool";
        /**
         * @description What a key may do in its project. `admin`: everything. `operator`: start and stop turns, and read. `worker`: run turns, answer calls, and read.
         *     `tool`: answer calls. `reader`: read. `approver`: see requests to people, and decide them. `auditor`: see who did what and when, but no content.
         *     `developer`: apply profiles and tools of its targets, and read. `recorder`: send requests to model providers through the recorder.
         * @enum {string}
         */
        Scope: "admin" | "operator" | "worker" | "tool" | "reader" | "approver" | "auditor" | "developer" | "recorder";
        SecretHeader: {
            /** @description Such as `Bearer `. */
            prefix?: string;
            secret: components["schemas"]["Name"];
        };
        /** @description The name of a secret. The secret itself never enters a card (SE-4). */
        SecretRef: {
            secret: components["schemas"]["Name"];
        };
        /** @description A model call. Its request is rendered again from the stored cards, and verified against the hash in its receipt. */
        Seen: {
            /** @description Tokens that the call was allowed to have. The receipt's `n_tokens` says how many it had. */
            budget: components["schemas"]["Tokens"];
            /** @description Messages, in the order in which the model saw them. */
            messages: components["schemas"]["SeenMessage"][];
            /** @description Cards that the model was not shown, and why. */
            omitted: components["schemas"]["Omitted"][];
            /** @description The receipt of the call. */
            receipt: components["schemas"]["Receipt"];
            tools?: components["schemas"]["SeenTools"] | null;
        };
        /** @description A message that a model saw, and where it came from. */
        SeenMessage: {
            /** @description Characters of `content`. */
            chars: number;
            /** @description What the message says. Absent with `bodies=false`. */
            content?: string | null;
            /** @description Layer that the message belongs to. */
            layer: components["schemas"]["Layer"];
            /** @description Number of the message, from 1. */
            n: number;
            /** @description Tokens of the message. */
            n_tokens: components["schemas"]["Tokens"];
            reasoning?: components["schemas"]["SeenReasoning"] | null;
            /** @description Role that the model saw. */
            role: components["schemas"]["Role"];
            /** @description Cards that the message was made of. */
            sources: components["schemas"]["Source"][];
            tool_call_id?: components["schemas"]["ToolCallId"] | null;
            /** @description Tools that the model called. Absent if there are none, and with `bodies=false`. */
            tool_calls?: components["schemas"]["ToolCall"][];
        };
        /** @description What a model thought before it answered. */
        SeenReasoning: {
            /** @description Format of the provider that it came from. */
            adapter: string;
            /** @description The readable part. */
            text: string;
            /** @description The provider's own blocks, as JSON text. They are sent back to it byte for byte. */
            verbatim?: string | null;
        };
        /** @description The tools that a model could call. */
        SeenTools: {
            /** @description Card that lists them, with their descriptions and schemas. */
            card_id: components["schemas"]["CardId"];
            /** @description Tokens of that card. */
            n_tokens: components["schemas"]["Tokens"];
            /** @description Names of the tools. */
            names: string[];
        };
        /**
         * @description What a turn did, or waited for, over a time. Segments of one turn may overlap: it waits for several calls at once, and a person is asked while the
         *     call is open.
         */
        Segment: {
            agent_turn_id: components["schemas"]["TurnId"];
            /**
             * Format: int64
             * @description When it began, in milliseconds since 1970.
             */
            from_ms: number;
            kind: components["schemas"]["SegmentKind"];
            /**
             * Format: uuid
             * @description The step of a model call, or the tool call. `null` if there is none.
             */
            ref?: string | null;
            /** @description What the step led to, how the call ended, or what the person decided. `null` if there is nothing to say. */
            status?: string | null;
            /**
             * Format: int64
             * @description When it ended. `null` if it has not ended, or if its end is not recorded.
             */
            to_ms?: number | null;
        };
        /**
         * @description What a turn did. `queued`: it waited for a worker, or for another turn of its agent. `model`: it called a model. `tool`: it waited for the answer
         *     of a tool. `child`: it waited for turns that it started. `person`: it waited for a decision or an answer. `lost`: its worker was lost.
         * @enum {string}
         */
        SegmentKind: "queued" | "model" | "tool" | "child" | "person" | "lost";
        /** @description A handoff package, and the agent that receives it. */
        Send: {
            agent_id?: components["schemas"]["AgentId"] | null;
            /**
             * @description Whether the package is external content: it came from outside your system, such as an email or a website. The turn then counts as having seen
             *     external content. If omitted, false.
             */
            external?: boolean;
            /** @description What to do with the package. If omitted, a standard instruction is used. */
            instruction?: string | null;
            /** @description User of your own system for whom you send the package. If omitted, no user is recorded. */
            on_behalf_of?: string | null;
            /** @description The package: `version` "2.0", `handoff_type`, `timestamp`, and what its type requires. */
            package: {
                [key: string]: unknown;
            };
            /** @description Profile of the agent that receives the package. */
            profile_name: components["schemas"]["Name"];
            session_id?: components["schemas"]["SessionId"] | null;
        };
        /** @description A session (conversation), without its messages. */
        Session: {
            compression_card_id?: components["schemas"]["CardId"] | null;
            /** Format: date-time */
            created_at: string;
            /**
             * Format: date-time
             * @description When the session was ended. Since then, no turn can start in it.
             */
            ended_at?: string | null;
            /** @description Whether the session contains external content. All its later turns then count as having seen external content. */
            has_external: boolean;
            labels: string[];
            mapreduce_results_box_id: components["schemas"]["BoxId"];
            messages_box_id: components["schemas"]["BoxId"];
            /** Format: int64 */
            n_messages: number;
            /**
             * @description Caller that opened the session: `key:NAME` (API key) or `user:SUBJECT` (token of the identity provider). `null` if a caller of scope `admin`
             *     or a command of `waybill` opened it.
             */
            owner?: string | null;
            session_id: components["schemas"]["SessionId"];
            title?: string | null;
            todo_card_id?: components["schemas"]["CardId"] | null;
        };
        /** @description A change of what a session remembers, and the step that made it. */
        SessionChange: {
            /** Format: date-time */
            created_at: string;
            patch: unknown;
            step_id: components["schemas"]["StepId"];
        };
        /** Format: uuid */
        SessionId: string;
        /** @description What holds for a whole project. */
        Settings: {
            /**
             * Format: int64
             * @description Bytes of artifacts that it may store, each content counted once. If omitted, 107374182400.
             */
            artifact_quota_bytes?: number;
            /** @description Hosts that its tools may reach. If empty, none. */
            egress_hosts?: components["schemas"]["HostPattern"][];
            embedding?: components["schemas"]["Embedding"] | null;
            /** @description CX-7: experience, knowledge and todo are shared between agents. If omitted, true. */
            enable_share_context?: boolean;
            framework?: components["schemas"]["FrameworkText"] | null;
            /** @description Further settings, for the project's own tools. */
            labels?: {
                [key: string]: string;
            };
            /**
             * Format: int64
             * @description Once the project has spent this in a calendar month (UTC), no turn starts until the next month; open turns go on. If omitted, no limit.
             */
            max_microdollars_per_month?: number | null;
            /**
             * Format: int32
             * @description How many turns may be open at a time, waiting ones included; 100,000 at most. One more is refused. If omitted, any number.
             */
            max_open_turns?: number | null;
            /**
             * Format: int32
             * @description L0-11 If omitted, 20.
             */
            max_recursion_depth?: number;
            /**
             * Format: int32
             * @description How many turns may run at a time. The rest wait. If omitted, as many as the workers allow every project.
             */
            max_running_turns?: number | null;
            /**
             * Format: int32
             * @description The most seconds that a turn lasts, waiting included, if neither its profile nor its caller sets a limit. If omitted, 2592000.
             */
            max_seconds?: number;
            /**
             * Format: int32
             * @description The most steps of a turn, if neither its profile nor its caller sets a limit. If omitted, 200.
             */
            max_steps?: number;
            /**
             * Format: int32
             * @description The most tokens that a turn reads and writes, if neither its profile nor its caller sets a limit. If omitted, 20000000.
             */
            max_tokens?: number;
            /** @description A result of more tokens than this becomes an artifact; the model sees its beginning and end. If omitted, 8000. */
            result_tokens?: components["schemas"]["Tokens"];
            /** @description Regular expressions. The recorder does not store what matches one of them in a text of a recorded request or answer. */
            withhold?: string[];
        };
        /** @description Documents that an agent may find: by `search_knowledge`, if it may call that, and as a block of its context. */
        Shelf: {
            block_tokens?: components["schemas"]["Tokens"] | null;
            /** @description The documents below these folders. */
            folders: components["schemas"]["ArtifactPath"][];
        };
        /** @description A turn, its steps, and its deliverable. */
        Shown: {
            /** @description What it delivered: a text, or any JSON. `null` if it has not delivered yet, or if the content can no longer be shown. */
            deliverable?: unknown;
            /** @description Steps of the turn, in order. */
            steps: components["schemas"]["Taken"][];
            /** @description The turn: its state, its boxes, and what it has used so far. */
            turn: components["schemas"]["Summary"];
        };
        /** @description A batch and its tasks. */
        ShownBatch: components["schemas"]["Batch"] & {
            /** @description Tasks of the batch, in the order of their index. */
            tasks: components["schemas"]["Page_TaskShown"];
        };
        /** @description How two model calls differ. */
        ShownDiff: components["schemas"]["Diff"] & {
            /**
             * Format: int32
             * @description Tokens that the provider read from its prompt cache for the left call. `null` if that was not recorded.
             */
            left_cached?: number | null;
            /**
             * Format: int32
             * @description Tokens that the provider read from its prompt cache for the right call. `null` if that was not recorded.
             */
            right_cached?: number | null;
        };
        /** @description A fork of a turn: what was changed, and the turn that runs it. */
        ShownFork: components["schemas"]["ForkOfTurn"] & {
            /** @description The turn that runs the fork. */
            turn: components["schemas"]["Summary"];
        };
        /** @description An approval or a question for a person: what is asked, about which tool call, and how it was decided. */
        ShownRequest: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description SHA-256 of the arguments of the call, byte for byte as the model wrote them. `null` if the call can no longer be shown. */
            arguments_hash?: string | null;
            /** Format: date-time */
            asked_at?: string | null;
            /** Format: date-time */
            deadline_at: string;
            decided?: components["schemas"]["RequestDecision"] | null;
            effect?: components["schemas"]["Effect"] | null;
            /** @description Profile of the agent that asks. */
            profile_name?: string | null;
            request?: components["schemas"]["RequestContent"] | null;
            request_card_id: components["schemas"]["CardId"];
            /** @description Whether the turn that asks has seen external content. */
            saw_external: boolean;
            /** @description First line of the question, up to 120 characters. `null` if the request can no longer be shown. */
            title?: string | null;
            /** @description Tool that the agent called. `null` if the call can no longer be shown. */
            tool?: string | null;
            tool_call_id: components["schemas"]["ToolCallId"];
        };
        /** @description A session, with its todo list and the summary of its older messages. */
        ShownSession: components["schemas"]["Session"] & {
            summary?: components["schemas"]["Reading"] | null;
            todo?: components["schemas"]["Reading"] | null;
        };
        /** @description Tokens of both calls. */
        Sides: {
            left: components["schemas"]["Tokens"];
            right: components["schemas"]["Tokens"];
        };
        /** @description An agent that could see a card. */
        Sight: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id?: components["schemas"]["TurnId"] | null;
            /** @description The box it stands in, and where. */
            box_id: components["schemas"]["BoxId"];
            granted_by?: string | null;
            /** Format: int64 */
            place: number;
            /** @description The rule of the handover and the agent that handed over, or the reason of the grant and who granted. */
            rule?: string | null;
            source_agent_id?: components["schemas"]["AgentId"] | null;
            /** @description `own`: the box is the agent's; `handed`: a turn of the agent was packed with it; `granted`; `joined`: a child of the agent wrote the box. */
            via: string;
        };
        /** @description A card from which a message was made. */
        Source: {
            card_id: components["schemas"]["CardId"];
            hash: components["schemas"]["CardHash"];
            /** @description Where the card came from. */
            origin: components["schemas"]["CardOrigin"];
        };
        /** @description Positions `from ..= upto` of a box, counted from 1. Empty when `upto < from`. */
        Span: {
            box_id: components["schemas"]["BoxId"];
            /** Format: int64 */
            from: number;
            /** Format: int64 */
            upto: number;
        };
        /** @description What the turns have used that began in a span of time. */
        Spend: {
            /**
             * Format: date-time
             * @description Turns that began at this time or later are not counted, because there were too many steps before it: continue with it as `since`. `null`
             *     if all turns of the span are counted.
             */
            complete_until?: string | null;
            /** @description Whether there are more than 1,000 groups. The rest is left out. */
            more_rows: boolean;
            /** @description Times: newest first. Other groups: the most expensive first. */
            rows: components["schemas"]["SpendRow"][];
        };
        /** @description What one group of turns has used. */
        SpendRow: {
            /**
             * Format: int64
             * @description Steps whose model was asked more than once: an attempt failed, or a worker was lost.
             */
            asked_again: number;
            /**
             * Format: date-time
             * @description Beginning of the hour or day. `null` if the groups are no times.
             */
            at?: string | null;
            /**
             * Format: int64
             * @description Tokens that providers read from their prompt cache.
             */
            cached: number;
            /**
             * Format: int64
             * @description Tokens that models read, cached ones included.
             */
            input: number;
            /**
             * @description The hour or day, the profile, `PROVIDER/MODEL`, the agent or the session. `null` for what has none: steps without a model call, turns
             *     without a session.
             */
            key?: string | null;
            /**
             * Format: int64
             * @description Cost in millionths of a dollar.
             */
            microdollars: number;
            /** Format: int64 */
            n_steps: number;
            /** Format: int64 */
            n_turns: number;
            /**
             * Format: int64
             * @description Tokens that models wrote.
             */
            output: number;
        };
        /** @description The turn to start: its profile, its instruction, and what the agent sees. */
        Start: {
            agent_id?: components["schemas"]["AgentId"] | null;
            /** @description Further arguments for the rules in `handover`, by name. */
            arguments?: {
                [key: string]: unknown;
            };
            channel?: components["schemas"]["Channel"] | null;
            /** @description Ids of further boxes whose cards the agent sees. */
            context_box_ids?: components["schemas"]["BoxId"][];
            /**
             * @description Whether the instruction is external content: it came from outside your system, such as an email or a web form. The turn then counts as having
             *     seen external content. If omitted, false.
             */
            external?: boolean;
            handover?: components["schemas"]["Handover"] | null;
            /** @description What the agent must do. */
            instruction: string;
            /**
             * @description Labels to file the turn under, such as `{"team": "blue"}`: list the turns with a label by `GET turns?label=team=blue`. At most 16. If omitted,
             *     none.
             */
            labels?: components["schemas"]["Labels"];
            limits?: components["schemas"]["Limits"] | null;
            /**
             * @description User of your own system for whom you start the turn. The user is recorded with the turn and with all turns that it starts, and tools get it
             *     with each call. If omitted, no user is recorded.
             */
            on_behalf_of?: string | null;
            /** @description Profile of the agent that does the work. */
            profile_name: components["schemas"]["Name"];
            /** @description Fields that the result must have: `[{"name": …, "description": …}]`. If omitted, no fields are required. */
            result_fields?: components["schemas"]["ResultField"][] | null;
            /**
             * @description JSON Schema (draft 2020-12) that the result must fit: an object (`"type": "object"`) of at most 64 KiB, whose `$ref`s name parts of itself. The
             *     agent sees it as the parameters of `submit_result`, with which the turn then ends. Do not set `result_fields` too. If omitted, no schema applies.
             */
            result_schema?: {
                [key: string]: unknown;
            } | null;
            session_id?: components["schemas"]["SessionId"] | null;
            /** @description What happens if a turn of the session is running already. If omitted, `start`. */
            while_running?: components["schemas"]["WhileRunning"];
        };
        /** @description The turns to start. */
        StartAll: {
            /** @description Turns to start, 1 to 1,000. */
            starts: components["schemas"]["KeyedStart"][];
        };
        /** @description What became of a start: the turn, or the problem. */
        StartOutcome: components["schemas"]["StartedOne"] | components["schemas"]["RefusedOne"];
        /** @description What a start led to. */
        Started: components["schemas"]["DispatchResult"] & {
            turn?: components["schemas"]["Shown"] | null;
        };
        /** @description The outcomes of all starts. */
        StartedAll: {
            /** @description One outcome for each start, in the order of the request. */
            outcomes: components["schemas"]["StartOutcome"][];
        };
        /** @description A fork that was started. */
        StartedFork: components["schemas"]["Forked"] & {
            /** @description Number of the variant in the request, from 0. */
            variant: number;
        };
        /** @description The forks that were started. */
        StartedForks: {
            /** @description Forks, variant by variant. */
            forks: components["schemas"]["StartedFork"][];
        };
        /** @description A start that led to a turn. */
        StartedOne: components["schemas"]["DispatchResult"] & {
            /** @description Key of the start. */
            key: string;
        };
        /** Format: uuid */
        StepId: string;
        /** @description What happened when a step was written. */
        Stepped: {
            budget?: components["schemas"]["Budget"] | null;
            /** @description Whether the step had been written before, so that this request changed nothing. */
            duplicate: boolean;
            /** @description Why the turn was stopped. If it is not `null`, the worker must end the turn. */
            stop_reason?: string | null;
            /** @description Whether the turn now waits for its calls. The worker then no longer holds it. */
            suspended: boolean;
        };
        /** @description Why the turn is stopped. */
        Stop: {
            /** @description Reason for stopping the turn. It is recorded in the audit log. */
            reason: string;
        };
        /** @description What happened to the turn. */
        StopAnswer: {
            /** @description Id of the turn. */
            agent_turn_id: components["schemas"]["TurnId"];
            /**
             * @description `ended`: no worker was running the turn, and it has ended as `canceled`. `asked`: a worker is running the turn, and was asked to end it.
             *     `over`: the turn had already ended.
             */
            stopped: string;
        };
        /** @description The `data` of an event, as JSON: a `TokenEvent` for `token`, and a `TurnEvent` for all others. */
        StreamEvent: components["schemas"]["TurnEvent"] | components["schemas"]["TokenEvent"];
        /** @description A turn: its state, its boxes, and what it has used so far. */
        Summary: {
            agent_id: components["schemas"]["AgentId"];
            agent_status?: components["schemas"]["AgentStatus"] | null;
            agent_turn_id: components["schemas"]["TurnId"];
            batch_id?: components["schemas"]["BatchId"] | null;
            /** Format: int64 */
            cached_tokens: number;
            channel: components["schemas"]["Channel"];
            context_box_id: components["schemas"]["BoxId"];
            /** Format: date-time */
            created_at: string;
            deliverable_card_id?: components["schemas"]["CardId"] | null;
            /** @description Whether its context or its output has external content. */
            external: boolean;
            /** Format: date-time */
            finished_at?: string | null;
            forked_from?: components["schemas"]["TurnId"] | null;
            inbox_status?: components["schemas"]["InboxStatus"] | null;
            /** Format: int64 */
            input_tokens: number;
            /** @description Labels that its caller gave it. */
            labels: components["schemas"]["Labels"];
            limits?: components["schemas"]["Given"] | null;
            /** Format: int64 */
            microdollars: number;
            /** @description Models that its steps used. */
            models: string[];
            /**
             * Format: int64
             * @description Number of turns below it, counted up to 1,000. `null` for a turn that another turn started.
             */
            n_below?: number | null;
            /**
             * Format: int32
             * @description How often the turn was taken from a worker whose lease had expired or that wrote nothing for too long. A new card of the turn resets it to 0.
             *     `null` once the turn has ended.
             */
            n_lost_leases?: number | null;
            /** Format: int64 */
            n_steps: number;
            /** @description User of the caller's own system for whom the turn was started, if the caller named one. */
            on_behalf_of?: string | null;
            output_box_id: components["schemas"]["BoxId"];
            /** Format: int64 */
            output_tokens: number;
            parent_agent_turn_id?: components["schemas"]["TurnId"] | null;
            parent_step_id?: components["schemas"]["StepId"] | null;
            parent_tool_call_id?: components["schemas"]["ToolCallId"] | null;
            profile_box_id?: components["schemas"]["BoxId"] | null;
            profile_name?: components["schemas"]["Name"] | null;
            query_card_ids: components["schemas"]["CardId"][];
            /** @description Why the turn failed, was stopped or timed out, or why it is to stop. `null` if no reason is recorded, or if it can no longer be shown. */
            reason?: string | null;
            /** Format: int32 */
            recursion_depth: number;
            /** @description The turn at the top of its tree: itself, if no turn started it. */
            root_turn_id: components["schemas"]["TurnId"];
            session_id?: components["schemas"]["SessionId"] | null;
            source_agent_id?: components["schemas"]["AgentId"] | null;
            /**
             * @description Caller that started the turn, such as `key:NAME` (API key), `user:SUBJECT` (token of the identity provider) or `cli:USER` (command line). A
             *     child turn has the same caller as its parent.
             */
            started_by?: string | null;
            /** @description `open` until the turn has ended; then how it ended. */
            status: components["schemas"]["TurnStatus"];
            /** Format: int32 */
            task_index?: number | null;
            /** @description First line of the instruction, at most 120 characters. `null` if the instruction can no longer be shown, has more than 64 kB, or is no text. */
            title?: string | null;
            /** @description The trace that it belongs to: 32 hex digits. */
            trace_id?: string | null;
            waiting_for?: components["schemas"]["WaitingFor"] | null;
        };
        /** @description One step of a turn. The fields about the model and what it used are `null` if the step made no model call. */
        Taken: {
            asked_again?: boolean | null;
            /** @description Why the provider could not use its prompt cache fully, as the provider itself reported it. `null` if it gave no reason. */
            cache_miss?: unknown;
            /** Format: int32 */
            cached_tokens?: number | null;
            /** Format: date-time */
            created_at: string;
            /** Format: int32 */
            input_tokens?: number | null;
            /** Format: int64 */
            microdollars?: number | null;
            model?: string | null;
            /** Format: int32 */
            n_asked?: number | null;
            /** Format: int32 */
            n_calls: number;
            outcome: string;
            /** Format: int32 */
            output_tokens?: number | null;
            provider?: string | null;
            /** @description Whether a worker reported these numbers over HTTP. Waybill did not make this model call itself. */
            reported?: boolean | null;
            step_id: components["schemas"]["StepId"];
            /** Format: int32 */
            took_ms?: number | null;
        };
        Target: string;
        /** @description The receiver, if the arguments do not name a `profile_name`. */
        TargetProfile: {
            profile_name?: components["schemas"]["Name"] | null;
        };
        /** @description Text with slots such as `{{agent_id}}`. */
        Template: string;
        /** @description How turns spent their time. */
        Timeline: {
            /** @description Segments, in the order in which they began. */
            segments: components["schemas"]["Segment"][];
            /** @description Whether there are more: ask for a shorter time, or for one of the turns below. */
            truncated: boolean;
        };
        /** @description A model call to make. */
        ToAsk: {
            /** @description Format of the request: `openai_chat`, `openai_responses` or `anthropic_messages`. */
            adapter: string;
            /** @description Whether the profile wants the context to be summarised by now. The server calls no model, so it leaves older messages out instead. */
            compaction_due: boolean;
            /** @description What the turn may still spend, by its own limits and the project's settings. */
            left: components["schemas"]["Budget"];
            /** @description Name of the model, as the provider spells it. */
            model: string;
            /** @description Cards that the model is not shown, and why. */
            omitted: components["schemas"]["Omitted"][];
            /** @description Name of the provider, as the profile and the operator's providers file spell it. */
            provider: components["schemas"]["Name"];
            /** @description Receipt of the call. Send it with the answer, unchanged. */
            receipt: components["schemas"]["Receipt"];
            /** @description Body of the request to the provider. Send it byte for byte, in UTF-8. */
            request: string;
            /** @description BLAKE3 hash of the request's bytes. */
            request_hash: components["schemas"]["Digest"];
            /** @description Seal of the receipt. Send it with the receipt. */
            seal: components["schemas"]["Digest"];
            /** @description Id that the step will have. Send it with the answer. */
            step_id: components["schemas"]["StepId"];
        };
        /** @description A piece of what a model is writing: the `data` of an event `token`. */
        TokenEvent: {
            /** @description The turn. */
            agent_turn_id: components["schemas"]["TurnId"];
            /**
             * Format: int32
             * @description Attempt of the step. A new attempt begins from the start.
             */
            attempt: number;
            /** @description Step that is being written. */
            step_id: components["schemas"]["StepId"];
            /** @description The piece. */
            text: string;
        };
        /** Format: int32 */
        Tokens: number;
        /** @description Confirmation that the piece was sent. */
        TokensSent: {
            /** @description Always true. The callers that watch the turn at this moment get the piece; it is not kept. */
            sent: boolean;
        };
        /** @description A tool of the project, and the target that answers its calls. */
        Tool: {
            after_execution?: components["schemas"]["AfterExecution"];
            /** @description When a person must approve a call before it is made. */
            approval?: components["schemas"]["Approval"];
            description: string;
            effect?: components["schemas"]["Effect"];
            /** @description Whether the caller that had the turn started may not approve its calls. */
            four_eyes?: boolean;
            http?: components["schemas"]["HttpTool"] | null;
            mcp?: components["schemas"]["McpTool"] | null;
            name: components["schemas"]["Name"];
            /** @description JSON Schema of the arguments. */
            parameters?: {
                [key: string]: unknown;
            };
            /** @description JSON Schema of its answer. An answer that does not match is a failure. */
            result?: {
                [key: string]: unknown;
            } | null;
            /** @description The target whose workers claim and answer its calls. If omitted, Waybill's own services, which call `http` and `mcp` tools. */
            target?: components["schemas"]["Target"];
            /** Format: int32 */
            timeout_seconds?: number;
            /** @description Whether its answers count as the project's own content. Otherwise they are labelled as content from outside. */
            trusted?: boolean;
        };
        /** @description One tool call of an assistant card. `arguments` is the text that the model wrote, byte for byte. */
        ToolCall: {
            arguments: string;
            /** @description Id that the model provider gave to the call. It is sent back only to that provider. */
            provider_call_id?: string | null;
            tool_call_id: components["schemas"]["ToolCallId"];
            tool_name: string;
        };
        /** Format: uuid */
        ToolCallId: string;
        /** @description The value of a header: a text, or a secret by its name, with a prefix. */
        ToolHeader: string | components["schemas"]["SecretHeader"];
        /** @description A turn and the turns below it. */
        Tree: {
            /** @description Whether there are more turns. The deepest are left out; list the tree of a turn further down to see them. */
            truncated: boolean;
            /** @description Turns, level by level: each comes after the one that started it. */
            turns: components["schemas"]["Summary"][];
        };
        /** @description What a turn was given to spend, and what became of it. */
        TurnBudget: {
            agent_turn_id: components["schemas"]["TurnId"];
            /** @description Its children, oldest first. */
            children: components["schemas"]["ChildBudget"][];
            /**
             * Format: date-time
             * @description The time by which it ends. `null` if there is no such time.
             */
            expires_at?: string | null;
            given?: components["schemas"]["Given"] | null;
            left?: components["schemas"]["Amounts"] | null;
            /** @description What its children were given of it, whether they returned it or not. */
            lent: components["schemas"]["Amounts"];
            /** @description What children returned that ended before it. It is negative if they used more than they were given. */
            returned: components["schemas"]["Amounts"];
            /** @description What its own model calls have used. */
            spent: components["schemas"]["Used"];
            /**
             * @description Whether the tree has more turns than were counted. Then the deepest are left out: `lent`, `children` and what these have spent may be too low,
             *     and `returned` too high.
             */
            truncated: boolean;
        };
        /**
         * Format: int64
         * @description Increases by one each time the agent begins a turn, and each time its turn is taken from a worker. A write with an older epoch is refused.
         */
        TurnEpoch: number;
        /** @description An event of a turn: the `data` of the events `state`, `step`, `request` and `task`. */
        TurnEvent: {
            agent_id: components["schemas"]["AgentId"];
            agent_turn_id: components["schemas"]["TurnId"];
            card_id?: components["schemas"]["CardId"] | null;
            /** Format: date-time */
            created_at: string;
            event: components["schemas"]["EventKind"];
            /** @description Id of the event. It is the same however often the event is sent; with `event` and `agent_turn_id` it names one event. */
            event_id: components["schemas"]["EventId"];
            /**
             * Format: int64
             * @description Number of the event. Of two events of one turn, the later one has the higher number.
             */
            outbox_seq: number;
            /** @description The turn at the top of its tree: itself, if no turn started it. */
            root_turn_id: components["schemas"]["TurnId"];
            /** @description How the turn ended, what a step came to, or what the agent does now. */
            status: string;
            step_id?: components["schemas"]["StepId"] | null;
            turn_epoch?: components["schemas"]["TurnEpoch"] | null;
        };
        /** @description Proves that the worker holds the turn. Send it with everything that you write to the turn. */
        TurnFence: {
            /** @description Agent of the turn. */
            agent_id: components["schemas"]["AgentId"];
            /** @description Token of the worker's claim of the turn. */
            claim_token: components["schemas"]["ClaimToken"];
            /** @description Epoch of the agent when the worker claimed the turn. */
            turn_epoch: components["schemas"]["TurnEpoch"];
        };
        /** Format: uuid */
        TurnId: string;
        /**
         * @description `open` until the turn has ended; then how it ended. `recorded`: an agent elsewhere made the model calls, and Waybill recorded them.
         * @enum {string}
         */
        TurnStatus: "open" | "success" | "failed" | "canceled" | "timeout" | "recorded";
        UrlTemplate: string;
        /** @description Tokens, cost and duration of a model call. Waybill subtracts the tokens and the cost from what the turn may still spend. */
        UsageSaid: {
            /**
             * Format: int32
             * @description How many of the input tokens came from the provider's prompt cache. If omitted, 0.
             */
            cached_tokens?: number;
            /**
             * Format: int32
             * @description Tokens that the model read, cached ones included. If omitted, 0.
             */
            input_tokens?: number;
            /**
             * Format: int32
             * @description Cost in millionths of a dollar. Counts only if the operator has set no price for this provider and model. If omitted, 0.
             */
            microdollars?: number;
            /** @description Name of the model, as the provider spells it, at most 200 characters. */
            model?: string;
            /**
             * Format: int32
             * @description Tokens that the model wrote. If omitted, 0.
             */
            output_tokens?: number;
            /** @description Name of the provider, at most 200 characters. If the operator's providers file has this provider, use its name there, so that Waybill finds the price. */
            provider?: string;
            /**
             * Format: int32
             * @description Duration of the model call in milliseconds. If omitted, 0.
             */
            took_ms?: number;
        };
        /** @description What was used: model calls, tokens and money. */
        Used: {
            /**
             * Format: int64
             * @description Cost in millionths of a dollar.
             */
            microdollars: number;
            /**
             * Format: int64
             * @description Model calls.
             */
            steps: number;
            /**
             * Format: int64
             * @description Tokens, read and written.
             */
            tokens: number;
        };
        /**
         * @description The decision of a person: `approved` or `rejected` for an approval request, `answered` for a question.
         * @enum {string}
         */
        Verb: "approved" | "rejected" | "answered";
        /** @description The result of checking a handoff package. */
        Verdict: {
            /** @description Number of artifacts that the package hands over: those that it names, and those in folders that it names. */
            n_artifacts: number;
            /**
             * Format: int32
             * @description Size of the package in tokens.
             */
            n_tokens: number;
            /** @description Whether the package can be sent. */
            ok: boolean;
            /** @description Problems of the package, in the order of the checks: `schema`, `path`, `gate`, `size`. Empty if the package can be sent. */
            problems: components["schemas"]["Wrong"][];
            /** @description Warnings. They do not prevent the package from being sent. */
            warnings: string[];
        };
        /** @description A call that was composed again and compared with its receipt. */
        VerifiedCall: {
            /** @description Whether the cards that the call saw are still what they were. */
            cards: components["schemas"]["CardsVerdict"];
            /** @description Cards that were read for the call. */
            n_cards: number;
            recomputed_hash?: components["schemas"]["Digest"] | null;
            /** @description Whether the request can be composed again. */
            request: components["schemas"]["RequestVerdict"];
            /** @description Hash of the request, as its receipt has it. */
            request_hash: components["schemas"]["Digest"];
            /** @description Step of the model call. */
            step_id: components["schemas"]["StepId"];
            /** @description Why the same bytes cannot be composed. `null` if they can. */
            why?: string | null;
        };
        /** @description The model calls to verify. */
        Verify: {
            after?: components["schemas"]["StepId"] | null;
            /**
             * Format: int32
             * @description Entries per page, at most 200. If omitted, 200.
             */
            most?: number | null;
            step_id?: components["schemas"]["StepId"] | null;
        };
        /**
         * @description What an open turn waits for. `person`: a decision or an answer. `child`: turns that it started. `tool`: the answer of a tool. `retry`: the time of
         *     its next attempt, or of its start. `worker`: a worker that claims it. `queue`: another turn of its agent.
         * @enum {string}
         */
        WaitKind: "person" | "child" | "tool" | "retry" | "worker" | "queue";
        /** @description How many wait for the same. */
        Waiting: {
            kind: components["schemas"]["WaitKind"];
            /** Format: int64 */
            n: number;
            /** Format: date-time */
            oldest_at: string;
            /** @description For `worker` and `tool`, the target that must take it up. */
            target?: string | null;
        };
        /** @description What an open turn waits for. */
        WaitingFor: {
            kind: components["schemas"]["WaitKind"];
            /** @description The tool that was called, or for `worker` the target. Absent if there is none. */
            name?: string | null;
            /** Format: date-time */
            since: string;
        };
        WarningRule: {
            message: string;
            /** @description JSON Schema of a package that needs no warning. */
            unless: {
                [key: string]: unknown;
            };
        };
        /**
         * @description What to do with a message for a session in which a turn is already running.
         * @enum {string}
         */
        WhileRunning: "start" | "queue" | "steer";
        /** @description One request, and the external content that its turn has seen. */
        WholeRequest: components["schemas"]["ShownRequest"] & {
            /**
             * @description Cards with external content that the turn has seen, newest first: up to 100, from the last 1,000 places of its context box and of its output
             *     box.
             */
            external_card_ids: components["schemas"]["CardId"][];
        };
        /** @description One place where a turn has a card, and how the card got there. */
        Why: {
            arg_key?: string | null;
            box_id: components["schemas"]["BoxId"];
            /**
             * Format: int64
             * @description Position of the card in the box. The first position is 1.
             */
            place: number;
            /**
             * @description How the card got there. By a handover: `argument` (an argument), `memory` (the memory of the agent, or of the agent that it was cloned from),
             *     `output` (what the agent that it was cloned from was writing), `box` (a box that an argument names), `session` (the messages of the session)
             *     or `parent` (the card that names the calling agent). Without a handover: `wrote` (the turn itself wrote the card) or `dispatched` (the turn
             *     was dispatched with it).
             */
            rule: string;
            source_agent_id?: components["schemas"]["AgentId"] | null;
            source_box_id?: components["schemas"]["BoxId"] | null;
            tool_suffix?: string | null;
            /** Format: int64 */
            upto?: number | null;
            via?: string | null;
        };
        /** @description One problem of a handoff package. */
        Wrong: {
            /** @description What to do about it. */
            advice: string;
            /** @description Place of the problem: a JSON Pointer into the package, or the path of an artifact. */
            at: string;
            /**
             * @description Check that failed: `schema` (the content of the package), `path` (an artifact is missing, damaged or not readable for the sender), `gate`
             *     (an artifact is not as the package type requires) or `size` (the package is too long).
             */
            check: string;
            /** @description What is wrong. */
            problem: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    finish_login: {
        parameters: {
            query?: {
                /** @description Code of the identity provider. */
                code?: string;
                /** @description State that the login began with. */
                state?: string;
                /** @description Issuer, if the identity provider names itself. */
                iss?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description To where the login was begun from. */
            302: {
                headers: {
                    /** @description The cookie of the session. */
                    "Set-Cookie"?: string;
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    begin_login: {
        parameters: {
            query?: {
                /** @description Where to go afterwards: a path below `/ui/`. If omitted, `/ui/`. */
                next?: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description To the login page of the identity provider. */
            302: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_login: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Login"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    log_in: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["LogIn"];
            };
        };
        responses: {
            200: {
                headers: {
                    /** @description The cookie of the session. */
                    "Set-Cookie"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Login"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    log_out: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    /** @description Removes the cookie. */
                    "Set-Cookie"?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Login"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_me: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Me"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_projects: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Project"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    create_project: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateProject"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CreatedProject"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_project: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Project"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_agents: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["AgentId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Agent"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    provision_agent: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Provision"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Provisioned"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_agent: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                agent: components["schemas"]["AgentId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Head"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_artifacts: {
        parameters: {
            query?: {
                /** @description Prefix of the paths to list, such as `reports/`. If omitted, all paths are listed. */
                prefix?: string;
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Artifact"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    put_artifact: {
        parameters: {
            query: {
                /** @description Path to store the content at, such as `reports/2026/summary.json`. */
                path: components["schemas"]["ArtifactPath"];
                /** @description Media type of the content. If omitted, it is derived from the extension of the path. */
                media_type?: string;
                /**
                 * @description Whether the content is external: it came from outside your system, such as an email or a website, or was made from external content. A turn
                 *     that reads it counts as having seen external content. For a key of scope `worker` or `tool`, the server always uses true. If omitted, false.
                 */
                external?: boolean;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        /** @description The whole content. It may be empty. */
        requestBody?: {
            content: {
                "application/octet-stream": string | null;
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Artifact"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_artifact: {
        parameters: {
            query: {
                /** @description Path of the artifact. */
                path: components["schemas"]["ArtifactPath"];
                /** @description If true, only the older versions are removed, and the newest one stays. If omitted, all versions are removed. */
                older?: boolean;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Removed"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    read_artifact: {
        parameters: {
            query: {
                /** @description Path of the artifact. */
                path: components["schemas"]["ArtifactPath"];
                /** @description Version to read. If omitted, the newest. */
                version?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
                };
            };
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_versions: {
        parameters: {
            query: {
                /** @description Path of the artifact. */
                path: components["schemas"]["ArtifactPath"];
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Artifact"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_audit: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["AuditId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Entry"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_batch: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                batch: components["schemas"]["BatchId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShownBatch"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_boxes: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BoxIds"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Boxes"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_box: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                box: components["schemas"]["BoxId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CardBox"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_cards: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                box: components["schemas"]["BoxId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Placed"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_entries: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                box: components["schemas"]["BoxId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_BoxEntry"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_heirs: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                box: components["schemas"]["BoxId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Heir"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_cache_misses: {
        parameters: {
            query?: {
                /** @description What to add up by: `why` (what had changed), `day` (of the call, UTC), `profile`, `model` or `conversation`. If omitted, `why`. */
                by?: "why" | "day" | "profile" | "model" | "conversation";
                /** @description Only turns that began at this time or later. If omitted, 24 hours before `until`. */
                since?: string;
                /** @description Only turns that began before this time. If omitted, now. */
                until?: string;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CacheMisses"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    claim_calls: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Claim"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ClaimedCalls"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    report_call: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                call: components["schemas"]["ToolCallId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewReport"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Reported"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_cards: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CardIds"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Cards"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_card: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Reading"];
                };
            };
            /** @description The client has the answer. */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    delete_card: {
        parameters: {
            query: {
                /** @description Why the card is deleted, in 1 to 1,000 characters. The reason is kept with the card's hash. */
                reason: string;
            };
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EndedCard"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_blast: {
        parameters: {
            query?: {
                /** @description Turns to look at, at most 10,000. If omitted, 1,000. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["BlastRadius"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_card_calls: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Places of the card per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_CardCall"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    expire_card: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Expiry"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["EndedCard"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_holdings: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Holding"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_sight: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["BoxId"];
                /** @description Boxes per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Sight"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    diff_contexts: {
        parameters: {
            query: {
                /** @description Turn of the first model call. */
                left: components["schemas"]["TurnId"];
                /** @description Step of the first model call. If omitted, the last model call of the turn. */
                left_step_id?: components["schemas"]["StepId"];
                /** @description Turn of the second model call. */
                right: components["schemas"]["TurnId"];
                /** @description Step of the second model call. If omitted, the last model call of the turn. */
                right_step_id?: components["schemas"]["StepId"];
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShownDiff"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    watch_project: {
        parameters: {
            query?: {
                /**
                 * @description Where to continue: the `id` of the last event that you have; 0 means from the beginning. The header `Last-Event-ID` does the same. If omitted,
                 *     or higher than the number of any event, only events from now on are sent.
                 */
                after?: number;
                /** @description Root turn of a tree: only events of this turn and of the turns below it are sent. If omitted, events of all turns of the project are sent. */
                root?: components["schemas"]["TurnId"];
                /** @description Kinds of events to send, separated by commas. If omitted, all kinds are sent. */
                kinds?: components["schemas"]["EventKind"][];
                /**
                 * @description Turns, at most 8 and separated by commas: what their models are writing is also sent, piece by piece, as events `token`. If omitted, there are
                 *     no such events.
                 */
                tokens?: components["schemas"]["TurnId"][];
            };
            header?: {
                "Last-Event-ID"?: number | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A stream of server-sent events. The `data` of each is a `StreamEvent` as JSON. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    find: {
        parameters: {
            query: {
                /**
                 * @description What to look for: an id, at least the first 8 digits of one, the hash of an artifact or of a card that is shared by content, or the beginning
                 *     of the path of an artifact.
                 */
                q: string;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FoundThing"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    compare_forks: {
        parameters: {
            query: {
                /** @description Turns to compare, separated by commas: 2 to 100. The first one is what the others are compared with. */
                turns: string;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ComparedRun"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_grants: {
        parameters: {
            query?: {
                /** @description Agent whose grants are listed. If omitted, the grants of all agents. */
                agent_id?: components["schemas"]["AgentId"];
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["GrantId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Grant"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    give_grant: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Give"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneGrant"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_grant: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                grant: components["schemas"]["GrantId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneGrant"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_schema: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A JSON Schema, version 2020-12. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    send_handoff: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Send"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["DispatchResult"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    check_handoff: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Package"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Verdict"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_keys: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["KeyId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Key"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    create_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CreateKey"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CreatedKey"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    revoke_key: {
        parameters: {
            query?: {
                /** @description Seconds for which the key still works, so that callers can switch to another key. If omitted, the key stops working at once. */
                after_seconds?: number;
            };
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                key: components["schemas"]["KeyId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Key"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_documents: {
        parameters: {
            query: {
                /** @description Kind of the documents to list: `knowledge` (stored by people) or `experience` (published deliverables of turns). */
                kind: components["schemas"]["DocumentKind"];
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: string;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Document"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    apply_document: {
        parameters: {
            query: {
                /** @description Path of the document, such as `handbook/leave.md`. Agents find the document if their profile lists its folder. */
                path: components["schemas"]["ArtifactPath"];
                /** @description Title of the document. If omitted, it has none. */
                title?: string;
                /**
                 * @description Whether the document is external content: it came from outside your system, such as an email or a website. A turn that sees it may then need
                 *     an approval to call some tools. If omitted, false.
                 */
                external?: boolean;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        /** @description The whole text, as UTF-8. */
        requestBody: {
            content: {
                "text/plain": string;
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AppliedDocument"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_document: {
        parameters: {
            query: {
                /** @description Kind of the document: `knowledge` (stored by people) or `experience` (published deliverables of turns). */
                kind: components["schemas"]["DocumentKind"];
                /** @description Path of the document. */
                path: components["schemas"]["ArtifactPath"];
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RemovedDocument"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    search_knowledge: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Question"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FoundChunk"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_now: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Now"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_plan: {
        parameters: {
            query?: {
                /** @description Version of the plan. If omitted, the newest. */
                version?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Plan"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_profile: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Profile"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_profile: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RemovedProfile"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_refusals: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["RefusalId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Refusal"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_requests: {
        parameters: {
            query?: {
                /** @description Which requests to list: `open` (they wait for a decision) or `decided`. If omitted, `open`. */
                state?: "open" | "decided";
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["ToolCallId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_ShownRequest"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_request: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                call: components["schemas"]["ToolCallId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WholeRequest"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    decide_request: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                call: components["schemas"]["ToolCallId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Decide"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RequestDecided"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_resources: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Resource"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    apply_resources: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Apply"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Applied"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_retention: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Retention"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    set_retention: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RetentionMonths"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Retention"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    place_hold: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Hold"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Retention"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    lift_hold: {
        parameters: {
            query: {
                /** @description Why the hold is lifted, in 1 to 1,000 characters. It is kept in the audit. */
                reason: string;
            };
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Retention"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    plan_retention: {
        parameters: {
            query?: {
                /** @description Months for which content would be kept. If this and `record_months` are omitted, what is set, with a shortening that is still to take effect. */
                content_months?: number;
                /** @description Months for which the record would be kept. If omitted, for ever. */
                record_months?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RetentionPlan"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_sessions: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["SessionId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Session"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    open_session: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Open"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Session"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_session: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ShownSession"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    forget_session: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Forgotten"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    describe_session: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Describe"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Session"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_changes: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["StepId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_SessionChange"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    end_session: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Session"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_messages: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Placed"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_session_turns: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["TurnId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                session: components["schemas"]["SessionId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Summary"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_settings: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Settings"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_spend: {
        parameters: {
            query?: {
                /** @description What to group by: `hour` or `day` (in which the turns began, UTC), `profile`, `model`, `agent` or `session`. If omitted, `day`. */
                by?: "hour" | "day" | "profile" | "model" | "agent" | "session";
                /** @description Only turns that began at this time or later. If omitted, 24 hours before `until`. */
                since?: string;
                /** @description Only turns that began before this time. If omitted, now. */
                until?: string;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Spend"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_tool: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Tool"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    register_tool: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Tool"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Applied"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    remove_tool: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                name: components["schemas"]["Name"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RemovedTool"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_turns: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["TurnId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
                /** @description Only turns in this state. If omitted, turns in any state. */
                status?: components["schemas"]["TurnStatus"];
                /** @description Only turns of agents with this profile. If omitted, turns of all profiles. */
                profile?: components["schemas"]["Name"];
                /** @description Only turns of this agent. If omitted, turns of all agents. */
                agent?: components["schemas"]["AgentId"];
                /** @description Only turns of this session. If omitted, turns of any session or none. */
                session?: components["schemas"]["SessionId"];
                /** @description Only turns with this label: `name=value`. If omitted, turns with any labels. */
                label?: string;
                /** @description Only turns whose events are published to this channel. If omitted, turns of all channels. */
                channel?: components["schemas"]["Channel"];
                /** @description Only turns that were started at this time or later. If omitted, from the first turn on. */
                since?: string;
                /** @description Only turns that were started before this time. If omitted, until now. */
                until?: string;
                /** @description Only forks of this turn. If omitted, all turns. */
                forked_from?: components["schemas"]["TurnId"];
                /** @description Only turns that have external content in their context or output; with `false`, only those that have not. If omitted, both. */
                external?: boolean;
                /** @description Only turns that cost at least this much, in millionths of a dollar. If omitted, turns of any cost. */
                min_microdollars?: number;
                /** @description Whether to list only root turns: those that a caller started, not another turn. If omitted, false. */
                roots?: boolean;
                /** @description Whether to list only turns that have not ended. If omitted, false. */
                open?: boolean;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Summary"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    start_turn: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the end of the turn, at most 30. If omitted, the request does not wait. */
                wait_seconds?: number;
            };
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Start"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Started"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    start_turns: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StartAll"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StartedAll"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_turn: {
        parameters: {
            query?: {
                /** @description Seconds to wait for the end of the turn, at most 30. If omitted, the request does not wait. */
                wait_seconds?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Shown"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    answer_turn: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ModelAnswer"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AnswerTaken"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_budget: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TurnBudget"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    compose_turn: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Compose"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ComposedStep"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_context: {
        parameters: {
            query?: {
                /** @description Step of the model call. If omitted, the last model call of the turn. */
                step_id?: components["schemas"]["StepId"];
                /** @description Whether to show what each message says. If omitted, true. */
                bodies?: boolean;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Seen"];
                };
            };
            /** @description The client has the answer. */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_context_chain: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["StepId"];
                /** @description Entries per page, at most 200. If omitted, 200. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Link"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    lint_context: {
        parameters: {
            query?: {
                /** @description Step of the model call. If omitted, the last model call of the turn. */
                step_id?: components["schemas"]["StepId"];
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Linted"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_context_messages: {
        parameters: {
            query?: {
                /** @description Step of the model call. If omitted, the last model call of the turn. */
                step_id?: components["schemas"]["StepId"];
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_SeenMessage"];
                };
            };
            /** @description The client has the answer. */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_context_request: {
        parameters: {
            query?: {
                /** @description Step of the model call. If omitted, the last model call of the turn. */
                step_id?: components["schemas"]["StepId"];
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The request, in the format of the provider's API. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": unknown;
                };
            };
            /** @description A part of the request. */
            206: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": string;
                };
            };
            /** @description The client has the request. */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    verify_context: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Verify"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_VerifiedCall"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_edges: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Edge"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    watch_turn: {
        parameters: {
            query?: {
                /** @description Where to continue: the `id` of the last event that you have. The header `Last-Event-ID` does the same, and comes first. If omitted, all events are sent. */
                after?: number;
                /**
                 * @description Whether to also send the text that the model is writing, piece by piece. A piece is sent only while you are connected, and is not repeated
                 *     later. If omitted, false.
                 */
                tokens?: boolean;
            };
            header?: {
                "Last-Event-ID"?: number | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A stream of server-sent events. The `data` of each is a `StreamEvent` as JSON. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/event-stream": string;
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    finish_turn: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Finish"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Ended"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    fork_turn: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Fork"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Forked"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_forks: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["TurnId"];
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_ShownFork"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    start_forks: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Forks"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StartedForks"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    give_back_turn: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["GiveBack"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["GivenBack"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_graph: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: components["schemas"]["TurnId"];
                /** @description Turns per page, at most 10,000. If omitted, 10,000. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Graph"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_handovers: {
        parameters: {
            query?: {
                /** @description Where to continue: the `next` of the previous page. If omitted, the first page is returned. */
                after?: number;
                /** @description Entries per page, at most 1,000. If omitted, 100. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Page_Handed"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    publish_turn: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Publish"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["AppliedDocument"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    list_receipts: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OneReceipt"][];
                };
            };
            /** @description The client has the answer. */
            304: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    write_step: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewStep"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Stepped"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    stop_turn: {
        parameters: {
            query?: never;
            header?: {
                /**
                 * @description Idempotency key. If you send the same request again with the same key within 24 hours, the server does not carry it out again, and returns the
                 *     first response. If omitted, the server carries out every request.
                 */
                "Idempotency-Key"?: string | null;
            };
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Stop"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["StopAnswer"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_timeline: {
        parameters: {
            query?: {
                /** @description Whether to show the turns below it too. If omitted, false. */
                tree?: boolean;
                /** @description Only segments that ended at this time or later. If omitted, from the start of the turn on. */
                from?: string;
                /** @description Only segments that began before this time. If omitted, until now. */
                to?: string;
                /** @description The most segments, at most 10,000. If omitted, 10,000. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Timeline"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    send_tokens: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewTokens"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["TokensSent"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    show_tree: {
        parameters: {
            query?: {
                /** @description The most turns to list, at most 10,000. If omitted, 10,000. */
                most?: number;
            };
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Tree"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    why_card: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
                turn: components["schemas"]["TurnId"];
                card: components["schemas"]["CardId"];
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Why"][];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    claim_turns: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ClaimTurns"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["ClaimedTurns"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    keep_lease: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Heartbeat"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Held"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
    leave: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description Slug or id of the project. */
                project: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["Leave"];
            };
        };
        responses: {
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Done"];
                };
            };
            /** @description The request failed. The body says what is wrong and what to do. */
            default: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/problem+json": components["schemas"]["Problem"];
                };
            };
        };
    };
}
