//! What a session remembers, what a receipt keeps, and what one statement reads of both (CX-6, CX-9, CX-10, CX-11).

use waybill_core::{
    card::{CardType, Content, Draft, NewCard, Reading, Role},
    card_box::{Origin, Span},
    id::{BoxId, CardId, ProjectId, SessionId, StepId},
    tokens::Tokens,
    turn::End,
};
use waybill_kernel::{
    batch,
    blackboard::{self, Blackboard, Error, Module, Patch},
    card,
    card_box::{self, Also, Window},
    receipt,
    turn::{self, DispatchRequest, Ending, Step},
};

use crate::{
    batches::Plan,
    cases, held, ids, instructions,
    turns::{House, calling, ending, instruction, thought},
};

fn todo(text: &str) -> NewCard {
    Draft::new(CardType::todo(), Role::System, Content::Json(serde_json::json!({ "text": text }))).seal().unwrap()
}

/// One that stands for nothing.
fn summary(text: &str) -> NewCard {
    let content = serde_json::json!({ "text": text, "covers": [] });
    Draft::new(CardType::compression(), Role::System, Content::Json(content)).seal().unwrap()
}

impl House {
    async fn session(&self) -> Blackboard {
        let session_id = SessionId::new();
        let mut work = self.t.begin().await;
        blackboard::open(&mut work, None, &[session_id]).await.unwrap();
        work.commit().await.unwrap();
        self.board(session_id).await
    }

    async fn board(&self, session_id: SessionId) -> Blackboard {
        blackboard::find(&mut self.t.begin().await, session_id).await.unwrap().unwrap()
    }

    async fn patch(&self, board: &Blackboard, patch: &Patch) -> Result<bool, Error> {
        self.patch_of(board, StepId::new(), patch).await
    }

    async fn patch_of(&self, board: &Blackboard, step_id: StepId, patch: &Patch) -> Result<bool, Error> {
        let mut alone = self.kernel().alone(self.t.project_id).await?;
        Ok(blackboard::patch(&mut alone, board.session_id, step_id, patch).await?.duplicate)
    }

    async fn memory(&self, session_id: SessionId) -> Vec<CardId> {
        let board = self.board(session_id).await;
        held(&mut self.t.begin().await, board.messages_box_id).await
    }

    async fn written(&self, n: usize) -> Vec<CardId> {
        let cards = instructions(n);
        let mut work = self.t.begin().await;
        card::insert(&mut work, &cards).await.unwrap();
        work.commit().await.unwrap();
        ids(&cards)
    }
}

/// CX-9: written twice, a patch changes nothing, whatever others did in between: also where the memory is another by now.
#[tokio::test]
async fn a_patch_written_twice_changes_nothing() {
    let house = House::new().await;
    let board = house.session().await;
    let cards = house.written(4).await;
    let (first, second) = (todo("one"), todo("two"));
    let messages = board.messages_box_id;
    let patches = [
        Patch::default().append(&cards[..2]).todo(first.clone(), None).compression(summary("one"), None, messages),
        Patch::default().append(&cards[1..3]).todo(second.clone(), Some(first.card_id())),
        Patch::default().results(&cards[..1]),
        Patch::default().reset(BoxId::new()).results(&cards[1..2]),
        Patch::default().replace(BoxId::new(), &cards[2..], Span::prefix(messages, 3)),
        Patch::default().todo(first.clone(), Some(second.card_id())), // back to what it was
    ];
    let steps: Vec<StepId> = patches.iter().map(|_| StepId::new()).collect();
    for (n, patch) in patches.iter().enumerate() {
        assert!(!house.patch_of(&board, steps[n], patch).await.unwrap(), "{n}");
        let after = house.board(board.session_id).await;
        let memory = house.memory(board.session_id).await;
        let results = held(&mut house.t.begin().await, after.mapreduce_results_box_id).await;
        for (step_id, earlier) in steps.iter().zip(&patches[..=n]) {
            assert!(house.patch_of(&board, *step_id, earlier).await.unwrap(), "known as written before");
        }
        assert_eq!(house.board(board.session_id).await, after, "{n}");
        assert_eq!(house.memory(board.session_id).await, memory, "{n}");
        assert_eq!(held(&mut house.t.begin().await, after.mapreduce_results_box_id).await, results, "{n}");
    }
    assert_eq!(house.memory(board.session_id).await, cards[2..]);
    let now = house.board(board.session_id).await;
    assert_eq!(now.compression_card_id, None, "it stood for messages that are no longer remembered");
    // A card that is there already is not yet a patch that was written.
    let late = Patch::default().todo(second, None);
    assert!(matches!(house.patch(&board, &late).await, Err(Error::Conflict { module: Module::Todo, .. })));
    assert_eq!(house.count("select count(*) from state.patches").await, 6, "who changed what is on record");
}

/// CX-9: of two writers that set the same thing one wins, and the other gets what is there now. Todo and summary are two things.
#[tokio::test]
async fn of_two_who_compare_and_set_one_wins() {
    let house = House::new().await;
    let board = house.session().await;
    let (first, second, other) = (todo("a"), todo("b"), summary("c"));
    house.patch(&board, &Patch::default().todo(first.clone(), None)).await.unwrap();
    let lost = house.patch(&board, &Patch::default().todo(second.clone(), None)).await;
    let expected = Some(first.card_id().to_string());
    assert!(
        matches!(&lost, Err(Error::Conflict { module: Module::Todo, found, .. }) if *found == expected),
        "{lost:?}"
    );
    house.patch(&board, &Patch::default().compression(other.clone(), None, board.messages_box_id)).await.unwrap();
    house.patch(&board, &Patch::default().todo(second.clone(), Some(first.card_id()))).await.unwrap();
    let lost = house.patch(&board, &Patch::default().compression(summary("d"), None, board.messages_box_id)).await;
    assert!(matches!(lost, Err(Error::Conflict { module: Module::Compression, .. })), "{lost:?}");
    let now = house.board(board.session_id).await;
    assert_eq!((now.todo_card_id, now.compression_card_id), (Some(second.card_id()), Some(other.card_id())));
    // Nothing of a patch that lost is written, its card neither.
    let unwritten = todo("e");
    let patch = Patch::default().append(&house.written(1).await).todo(unwritten.clone(), None);
    assert!(house.patch(&board, &patch).await.is_err());
    assert!(house.memory(board.session_id).await.is_empty());
    let found = card::fetch(&mut house.t.begin().await, &[unwritten.card_id()], None).await.unwrap();
    assert_eq!(found.missing, [unwritten.card_id()]);
}

/// CX-9: a memory is replaced only as it was read, to its last message: what came since would be lost.
#[tokio::test]
async fn an_append_is_not_lost_to_a_replacement() {
    let house = House::new().await;
    let board = house.session().await;
    let cards = house.written(3).await;
    house.patch(&board, &Patch::default().append(&cards[..1])).await.unwrap();
    let read = Span::prefix(board.messages_box_id, 1);
    house.patch(&board, &Patch::default().append(&cards[1..2])).await.unwrap();
    let stale = Patch::default().replace(BoxId::new(), &cards[2..], read);
    let lost = house.patch(&board, &stale).await;
    assert!(matches!(lost, Err(Error::Conflict { module: Module::Messages, .. })), "{lost:?}");
    let fresh = Patch::default().replace(BoxId::new(), &cards[2..], Span { upto: 2, ..read });
    house.patch(&board, &fresh).await.unwrap();
    assert_eq!(house.memory(board.session_id).await, cards[2..]);
    let lost = house.patch(&board, &Patch::default().replace(BoxId::new(), &[], Span { upto: 2, ..read })).await;
    assert!(lost.is_err(), "another memory by now");
    // Nor does a summary of the old one come to stand for the new one.
    let stale = Patch::default().compression(summary("of the old"), None, board.messages_box_id);
    let lost = house.patch(&board, &stale).await;
    assert!(matches!(lost, Err(Error::Conflict { module: Module::Compression, .. })), "{lost:?}");
    // The old one stays readable.
    assert_eq!(held(&mut house.t.begin().await, board.messages_box_id).await, cards[..2]);
}

/// CX-9: appends never conflict: many at once, also turns that end and a summary that is set.
#[tokio::test]
async fn appends_at_once_are_all_there_once() {
    let house = House::new().await;
    let board = house.session().await;
    let n = usize::try_from(cases(12)).unwrap();
    let cards = house.written(n).await;
    let one = async |card_id: CardId| house.patch(&board, &Patch::default().append(&[card_id])).await;
    let mut tasks: Vec<futures::future::LocalBoxFuture<'_, _>> = Vec::new();
    for card_id in &cards {
        tasks.push(Box::pin(one(*card_id)));
        tasks.push(Box::pin(one(*card_id)));
    }
    tasks.push(Box::pin(async {
        house.patch(&board, &Patch::default().compression(summary("s"), None, board.messages_box_id)).await
    }));
    for outcome in futures::future::join_all(tasks).await {
        outcome.unwrap();
    }
    let mut memory = house.memory(board.session_id).await;
    assert_eq!(memory.len(), n);
    memory.sort();
    assert_eq!(memory, cards);
    let length =
        "select sum(length)::bigint from cardbox.boxes b join state.blackboards s on s.messages_box_id = b.box_id";
    assert_eq!(house.count(length).await, i64::try_from(n).unwrap(), "nor does the box hold one twice");
}

/// CX-13, DESIGN: a turn of a session ends, however it ends, with its question and its answer in the memory, in that order, once.
#[tokio::test]
async fn question_and_answer_join_the_memory() {
    let house = House::new().await;
    let board = house.session().await;
    let agents = house.agents(4).await;
    let questions: Vec<NewCard> = (0..4).map(|n| instruction(&format!("question {n}"))).collect();
    let request = |n: usize| DispatchRequest {
        session_id: Some(board.session_id),
        ..DispatchRequest::instructed(agents[n], questions[n].card_id())
    };
    for (n, question) in questions.iter().enumerate() {
        house.enqueue_all(&[request(n)], std::slice::from_ref(question)).await.unwrap();
    }
    let mut fences = Vec::new();
    while let Some(claimed) = house.claim().await {
        assert_eq!(claimed.session_id, Some(board.session_id));
        fences.push(claimed.fence);
    }
    let endings: Vec<Ending> = fences.iter().map(|fence| ending(*fence)).collect();
    let answer = |n: usize| endings[n].cards.last().unwrap().card_id();
    let finish = async |endings: &[Ending]| {
        let mut work = house.t.begin().await;
        turn::finish(&mut work, endings).await.unwrap();
        work.commit().await.unwrap();
    };
    finish(&endings[..1]).await;
    finish(&endings[..1]).await; // again, without having learned of it
    finish(&endings[1..3]).await;
    finish(&[Ending { status: End::Failed, ..endings[3].clone() }]).await;
    let expected: Vec<CardId> = (0..4).flat_map(|n| [questions[n].card_id(), answer(n)]).collect();
    assert_eq!(house.memory(board.session_id).await, expected);
}

/// A session is locked after every head: the last child's end, which wants its parent's head, and the parent's own, in one session.
#[tokio::test]
async fn a_child_and_its_parent_end_without_waiting_for_each_other() {
    let house = House::new().await;
    house.t.arm_fail_points().await;
    let board = house.session().await;
    let question = instruction("q");
    let parent = house.agent().await;
    let of_session = |request: DispatchRequest| DispatchRequest { session_id: Some(board.session_id), ..request };
    let request = of_session(DispatchRequest::instructed(parent, question.card_id()));
    house.enqueue_all(std::slice::from_ref(&request), std::slice::from_ref(&question)).await.unwrap();
    let claimed = house.claim().await.unwrap();
    house.step(&claimed.fence, &calling(1, "sys-pmo", crate::turns::LONG, true)).await.unwrap();
    let call = house.claim_calls("sys-pmo", 1).await.remove(0);
    let Plan { fork, children, card } = house.plan_fork(1, false, crate::turns::LONG);
    house.make(&children).await;
    let children: Vec<DispatchRequest> = children.into_iter().map(of_session).collect();
    let mut work = house.t.begin().await;
    batch::open(&mut work, call.tool_call_id, call.claim_token, &fork).await.unwrap();
    turn::enqueue(&mut work, &children, std::slice::from_ref(&card)).await.unwrap();
    batch::dispatched(&mut work, call.tool_call_id, call.claim_token).await.unwrap();
    work.commit().await.unwrap();
    let child = house.claim().await.unwrap();

    // The child is about to join, which wants its parent's head; the parent is stopped meanwhile, and wants the session.
    let paused = house.t.pause_at("finish.remembered").await;
    let stop = async {
        paused.reached().await;
        // The batch is locked: the stop waits for no lock, is refused, and is retried as a caller does.
        let refused = house.stop(request.agent_turn_id).await;
        assert!(matches!(refused, Err(turn::Error::TryAgain(_))), "{refused:?}");
        paused.resume().await;
        loop {
            match house.stop(request.agent_turn_id).await {
                Err(turn::Error::TryAgain(_)) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
                known => break known,
            }
        }
    };
    let (ended, stopped) = tokio::join!(house.finish(child.fence), stop);
    ended.unwrap();
    stopped.unwrap();
    let memory = house.memory(board.session_id).await;
    assert_eq!(memory.len(), 4, "two questions and two answers: {memory:?}");
}

/// CX-6: what is private to an agent is not remembered for others; and no caller reaches a session that does not exist, or is not its own.
#[tokio::test]
async fn what_does_not_belong_is_not_remembered() {
    let house = House::new().await;
    let board = house.session().await;
    let prompt = Draft::new(CardType::rendered_prompt(), Role::System, Content::Text("secret".into())).seal().unwrap();
    let mut work = house.t.begin().await;
    card::intern(&mut work, std::slice::from_ref(&prompt)).await.unwrap();
    work.commit().await.unwrap();
    for card_id in [prompt.card_id(), CardId::new()] {
        for patch in [
            Patch::default().append(&[card_id]),
            Patch::default().results(&[card_id]),
            Patch::default().replace(BoxId::new(), &[card_id], Span::prefix(board.messages_box_id, 0)),
        ] {
            assert!(matches!(house.patch(&board, &patch).await, Err(Error::NotFound(_))));
        }
    }
    let wrong = house.patch(&board, &Patch::default().todo(summary("x"), None)).await;
    assert!(matches!(wrong, Err(Error::WrongType { .. })));
    let span = Span::prefix(BoxId::new(), 3);
    let content = serde_json::json!({ "text": "of others", "covers": [span] });
    for content in [content, serde_json::json!("plain")] {
        let card = Draft::new(CardType::compression(), Role::System, Content::Json(content)).seal().unwrap();
        let patch = Patch::default().compression(card, None, board.messages_box_id);
        assert!(matches!(house.patch(&board, &patch).await, Err(Error::NoSummary)));
    }
    let unknown = Blackboard { session_id: SessionId::new(), ..board };
    assert!(matches!(house.patch(&unknown, &Patch::default()).await, Err(Error::NotFound(_))));
    let mut elsewhere = house.kernel().begin(ProjectId::new()).await.unwrap();
    assert_eq!(blackboard::find(&mut elsewhere, board.session_id).await.unwrap(), None);
    assert!(blackboard::patch(&mut elsewhere, board.session_id, StepId::new(), &Patch::default()).await.is_err());

    let agent_id = house.agent().await;
    let question = instruction("q");
    let request = DispatchRequest {
        session_id: Some(SessionId::new()),
        ..DispatchRequest::instructed(agent_id, question.card_id())
    };
    let second =
        DispatchRequest { session_id: request.session_id, ..DispatchRequest::instructed(agent_id, question.card_id()) };
    for requests in [vec![request.clone()], vec![request, second]] {
        let refused = house.enqueue_all(&requests, std::slice::from_ref(&question)).await;
        assert!(matches!(refused, Err(turn::Error::NotFound(_))), "{refused:?}");
    }
}

/// CX-11: a receipt is written with its step, as it was, and with nothing else.
#[tokio::test]
async fn a_receipt_is_kept_as_it_was_written() {
    let house = House::new().await;
    let text = r#"{"z": 1.50, "a": {"y": 1e5}}"#;
    let fence = house.running().await;
    let step = Step { receipt: Some(text.into()), ..calling(0, "tool", crate::turns::LONG, false) };
    house.step(&fence, &step).await.unwrap();
    assert!(house.step(&fence, &step).await.unwrap().duplicate);
    house.step(&fence, &calling(0, "tool", crate::turns::LONG, false)).await.unwrap();
    let last = Ending { receipt: Some("{}".into()), ..ending(fence) };
    let mut work = house.t.begin().await;
    let nameless = Ending { step_id: None, ..last.clone() };
    assert!(matches!(turn::finish(&mut work, &[nameless]).await, Err(turn::Error::Invalid(_))));
    turn::finish(&mut work, std::slice::from_ref(&last)).await.unwrap();
    work.commit().await.unwrap();
    let mut work = house.t.begin().await;
    let found = receipt::list(&mut work, fence.agent_turn_id()).await.unwrap();
    assert_eq!(found.iter().map(|r| Some(r.step_id)).collect::<Vec<_>>(), [Some(step.step_id), last.step_id]);
    assert_eq!(found[0].receipt.get(), text);
    assert!(receipt::find(&mut work, fence.agent_turn_id(), Some(StepId::new())).await.unwrap().is_none());
    drop(work);
    // Of many that end at once.
    let fences = [house.running().await, house.running().await];
    let endings = fences.map(|fence| Ending { receipt: Some("[1]".into()), ..ending(fence) });
    let mut work = house.t.begin().await;
    turn::finish(&mut work, &endings).await.unwrap();
    for fence in fences {
        assert_eq!(receipt::list(&mut work, fence.agent_turn_id()).await.unwrap()[0].receipt.get(), "[1]");
    }
    work.commit().await.unwrap();
    let change = sqlx::query("update state.receipts set receipt = '{}'").execute(&mut house.t.admin().await).await;
    assert!(change.is_err(), "history is not rewritten, by any role");
}

/// DESIGN: what a model call is made of is read by one statement; and each card says where it stands itself.
#[tokio::test]
async fn one_statement_reads_what_a_call_is_made_of() {
    let house = House::new().await;
    let board = house.session().await;
    let cards = house.written(5).await;
    let list = todo("t");
    let patch = Patch::default().append(&cards[..3]).todo(list.clone(), None);
    house.patch(&board, &patch).await.unwrap();
    let mut work = house.t.begin().await;
    let (context, output) = (BoxId::new(), BoxId::new());
    card_box::create(&mut work, &[context, output]).await.unwrap();
    card_box::append(&mut work, context, &cards[3..4]).await.unwrap();
    card_box::inherit(&mut work, context, Span { box_id: board.messages_box_id, from: 2, upto: 3 }).await.unwrap();
    let thoughts = [thought("a"), thought("b")];
    card::insert(&mut work, &thoughts).await.unwrap();
    card_box::append(&mut work, output, &ids(&thoughts)).await.unwrap();
    let window = Window { pinned: 1, budget: Tokens::new(1_000).unwrap(), as_of: None };
    let also = Also { output_box_id: Some(output), card_ids: &cards[4..], session_id: Some(board.session_id) };
    let (hydrated, also_read) = card_box::hydrate_with(&mut work, context, None, window, &also).await.unwrap();
    let origins: Vec<(CardId, Origin)> =
        hydrated.cards.iter().map(|placed| (placed.reading.card_id(), placed.origin)).collect();
    let at = |box_id, seq| Origin { box_id, seq };
    let messages = board.messages_box_id;
    assert_eq!(origins, [(cards[3], at(context, 1)), (cards[1], at(messages, 2)), (cards[2], at(messages, 3))]);
    assert_eq!(also_read.output.iter().map(|p| p.reading.card_id()).collect::<Vec<_>>(), ids(&thoughts));
    assert_eq!(also_read.cards.iter().map(Reading::card_id).collect::<Vec<_>>(), cards[4..]);
    assert_eq!(also_read.messages_box_id, Some(messages));
    assert_eq!(also_read.todo.as_ref().map(Reading::card_id), Some(list.card_id()));
    assert_eq!(also_read.compression, None);
    let (_, nothing) = card_box::hydrate_with(&mut work, context, None, window, &Also::default()).await.unwrap();
    assert_eq!(nothing, card_box::AlsoRead::default());
}
