//! A call on its way: the answer of a provider passes to the client, and a copy of it to the record.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Bytes, http::header};
use futures::Stream;

use super::{headers::text, queue::Call};
use crate::Api;

/// A call under way. However it ends, the record gets what has passed; also if the client goes away before the provider answers.
pub(super) struct Underway {
    api: Arc<Api>,
    call: Option<Call>,
    /// How many bytes are still to come, where the provider has said so: a server stops asking once it has them all.
    to_come: Option<u64>,
}

impl Underway {
    pub(super) fn new(api: &Arc<Api>, call: Call) -> Underway {
        Underway { api: api.clone(), call: Some(call), to_come: None }
    }

    /// Keeps what the provider says before the body.
    pub(super) fn answered(&mut self, answer: &reqwest::Response) {
        let Some(call) = &mut self.call else { return };
        call.status = answer.status().as_u16();
        call.answer_type = text(answer.headers(), &header::CONTENT_TYPE);
        call.answer_encoding = text(answer.headers(), &header::CONTENT_ENCODING);
        self.to_come = answer.content_length();
    }

    /// Ends without a record: the provider was not reached.
    pub(super) fn forget(mut self) {
        self.call = None;
    }

    fn keep(&mut self, piece: &Bytes) {
        let Some(call) = &mut self.call else { return };
        if call.keep(piece) {
            self.to_come = self.to_come.map(|n| n.saturating_sub(piece.len() as u64));
        } else {
            // There is no room for the rest: what came before is put on record.
            self.to_come = None;
            self.end(false);
        }
    }

    fn end(&mut self, is_whole: bool) {
        let Some(mut call) = self.call.take() else { return };
        call.took = call.begun.elapsed().max(Duration::from_millis(1));
        call.is_whole = is_whole || self.to_come == Some(0);
        self.api.recorder.queue.put(call);
    }
}

impl Drop for Underway {
    /// The client went away.
    fn drop(&mut self) {
        self.end(false);
    }
}

/// A stream that keeps what passes.
pub(super) struct Tee<S> {
    stream: Pin<Box<S>>,
    underway: Option<Underway>,
}

impl<S> Tee<S> {
    pub(super) fn new(stream: S, underway: Option<Underway>) -> Tee<S> {
        Tee { stream: Box::pin(stream), underway }
    }
}

impl<S, E> Stream for Tee<S>
where
    S: Stream<Item = Result<Bytes, E>>,
{
    type Item = Result<Bytes, E>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, E>>> {
        let polled = self.stream.as_mut().poll_next(context);
        if let Some(underway) = &mut self.underway {
            match &polled {
                Poll::Ready(Some(Ok(piece))) => underway.keep(piece),
                Poll::Ready(Some(Err(_))) => underway.end(false),
                Poll::Ready(None) => underway.end(true),
                Poll::Pending => {}
            }
        }
        polled
    }
}
