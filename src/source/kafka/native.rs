//! What librdkafka can tell and its Rust wrapper cannot, or only by a panic. The crate's only
//! unsafe code.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::slice;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use uuid::Uuid;

/// An entry of a list of partitions, with its metadata as bytes: another tool's may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) metadata: Vec<u8>,
    /// Whether the broker answered for this entry.
    pub(super) valid: bool,
}

/// Reads a list of partitions.
pub(super) fn entries(list: &TopicPartitionList) -> Vec<Entry> {
    // SAFETY: the list is live and owned by the wrapper.
    unsafe { raw_entries(list.ptr()) }
}

/// # Safety
///
/// `list` is null or live.
unsafe fn raw_entries(list: *const sys::rd_kafka_topic_partition_list_t) -> Vec<Entry> {
    // SAFETY: the list owns `cnt` elements behind `elems` (null when there are none); a topic is a
    // C string; metadata is null or `metadata_size` bytes.
    unsafe {
        if list.is_null() || (*list).elems.is_null() || (*list).cnt <= 0 {
            return Vec::new();
        }
        let entry = |element: &sys::rd_kafka_topic_partition_t| Entry {
            topic: CStr::from_ptr(element.topic).to_string_lossy().into_owned(),
            partition: element.partition,
            offset: element.offset,
            metadata: if element.metadata.is_null() {
                Vec::new()
            } else {
                slice::from_raw_parts(element.metadata.cast::<u8>(), element.metadata_size).to_vec()
            },
            valid: element.err == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR,
        };
        slice::from_raw_parts((*list).elems, (*list).cnt as usize)
            .iter()
            .map(entry)
            .collect()
    }
}

/// Where the answers to commits come back. The client's own ways either tell nothing of an answer,
/// or wait for it as long as a session lasts when no coordinator can be reached.
pub(super) struct Commits {
    answers: Owned<sys::rd_kafka_queue_t>,
}

// SAFETY: the client's queues may be used from any thread.
unsafe impl Send for Commits {}

/// What became of a commit.
pub(super) struct Answer {
    pub(super) result: KafkaResult<()>,
    pub(super) offsets: Vec<Entry>,
}

impl Commits {
    /// Must be dropped before the client.
    pub(super) fn new<C: ClientContext>(client: &Client<C>) -> KafkaResult<Self> {
        // SAFETY: the client is live; the queue is freed once, by `Owned`.
        let queue = unsafe { sys::rd_kafka_queue_new(client.native_ptr()) };
        Owned::new(queue, sys::rd_kafka_queue_destroy)
            .map(|answers| Self { answers })
            .ok_or(KafkaError::ConsumerCommit(
                RDKafkaErrorCode::CriticalSystemResource,
            ))
    }

    /// Sends a commit on its way. Commits arrive in the order sent.
    pub(super) fn send<C: ClientContext>(
        &self,
        client: &Client<C>,
        offsets: &TopicPartitionList,
    ) -> KafkaResult<()> {
        // SAFETY: client, list and queue are live; the call copies the list and counts the queue.
        let sent = unsafe {
            sys::rd_kafka_commit_queue(
                client.native_ptr(),
                offsets.ptr(),
                self.answers.ptr,
                None,
                ptr::null_mut(),
            )
        };
        if sent == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            Ok(())
        } else {
            Err(KafkaError::ConsumerCommit(sent.into()))
        }
    }

    /// The answer to the earliest commit that has none yet, waiting a while for it.
    pub(super) fn answer(&self, timeout: Duration) -> Option<Answer> {
        // SAFETY: the queue is live; the event is freed once, by `Owned`, after the list that it
        // owns was read.
        unsafe {
            let event = Owned::new(
                sys::rd_kafka_queue_poll(self.answers.ptr, millis(timeout)),
                sys::rd_kafka_event_destroy,
            )?;
            let error = sys::rd_kafka_event_error(event.ptr);
            let offsets = raw_entries(sys::rd_kafka_event_topic_partition_list(event.ptr));
            let result = if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                Err(KafkaError::ConsumerCommit(error.into()))
            } else if offsets.iter().any(|entry| !entry.valid) {
                Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::Fail))
            } else {
                Ok(())
            };
            Some(Answer { result, offsets })
        }
    }
}

fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

/// Fills in how far each partition of the list was read, past what there is nothing to deliver of.
pub(super) fn positions<C: ClientContext>(client: &Client<C>, list: &TopicPartitionList) {
    // SAFETY: both pointers are live for the call, which keeps neither; each entry's error and
    // offset say what came of it.
    unsafe { sys::rd_kafka_position(client.native_ptr(), list.ptr()) };
}

/// A header: its name, which a producer need not write in UTF-8, and its value.
pub(super) type Header<'a> = (Cow<'a, str>, Option<&'a [u8]>);

/// The headers of a record in their order. A name that is no UTF-8 is read with replacement
/// characters.
pub(super) fn headers<'a>(message: &'a BorrowedMessage<'_>) -> Vec<Header<'a>> {
    let mut list = ptr::null_mut();
    // SAFETY: the message is live; the list and what it points to belong to the message, whose
    // borrow bounds the result.
    unsafe {
        let found = sys::rd_kafka_message_headers(message.ptr(), &mut list);
        if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR || list.is_null() {
            return Vec::new();
        }
        raw_headers(list)
    }
}

/// # Safety
///
/// `list` is live for `'a`.
unsafe fn raw_headers<'a>(list: *const sys::rd_kafka_headers_t) -> Vec<Header<'a>> {
    let mut headers = Vec::new();
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    // SAFETY: an index without a header is an error, not undefined; the name found is a C string,
    // the value null or `size` bytes, both owned by the list.
    unsafe {
        for index in 0..sys::rd_kafka_header_cnt(list) {
            let found = sys::rd_kafka_header_get_all(list, index, &mut name, &mut value, &mut size);
            if found != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
                break;
            }
            let name = CStr::from_ptr(name).to_string_lossy();
            let value = (!value.is_null()).then(|| slice::from_raw_parts(value.cast::<u8>(), size));
            headers.push((name, value));
        }
    }
    headers
}

/// Frees a native object at the end of its scope.
struct Owned<T> {
    ptr: *mut T,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    fn new(ptr: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        (!ptr.is_null()).then_some(Self { ptr, destroy })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by the constructor that belongs to `destroy`, and freed only here.
        unsafe { (self.destroy)(self.ptr) }
    }
}

/// The ids of topics, by a broker's word; one whose id it does not tell is left out. `None`: no
/// answer in time.
pub(super) fn topic_ids<C: ClientContext>(
    client: &Client<C>,
    broker: i32,
    topics: &[&str],
    timeout: Duration,
) -> Option<HashMap<String, Uuid>> {
    let names: Vec<CString> = topics
        .iter()
        .filter_map(|topic| CString::new(*topic).ok())
        .collect();
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let timeout_ms = millis(timeout);
    let rk = client.native_ptr();
    // SAFETY: the client outlives every object made here; each is freed once by `Owned`, the event
    // before its queue. The call copies names and options; what the event points to is read before
    // it is freed.
    unsafe {
        let queue = Owned::new(sys::rd_kafka_queue_new(rk), sys::rd_kafka_queue_destroy)?;
        let collection = Owned::new(
            sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len()),
            sys::rd_kafka_TopicCollection_destroy,
        )?;
        let options = Owned::new(
            sys::rd_kafka_AdminOptions_new(
                rk,
                sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            sys::rd_kafka_AdminOptions_destroy,
        )?;
        sys::rd_kafka_AdminOptions_set_request_timeout(options.ptr, timeout_ms, ptr::null_mut(), 0);
        // Any broker knows; the controller, which is asked otherwise, may be out of reach.
        sys::rd_kafka_AdminOptions_set_broker(options.ptr, broker, ptr::null_mut(), 0);
        sys::rd_kafka_DescribeTopics(rk, collection.ptr, options.ptr, queue.ptr);
        let event = Owned::new(
            sys::rd_kafka_queue_poll(queue.ptr, timeout_ms),
            sys::rd_kafka_event_destroy,
        )?;
        let result = sys::rd_kafka_event_DescribeTopics_result(event.ptr);
        if result.is_null() {
            return None;
        }
        if sys::rd_kafka_event_error(event.ptr) != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
            return unanswered(sys::rd_kafka_event_error(event.ptr));
        }
        let mut count = 0;
        let descriptions = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if descriptions.is_null() {
            return None;
        }
        let described = slice::from_raw_parts(descriptions, count);
        Some(described.iter().filter_map(|d| described_id(*d)).collect())
    }
}

/// A broker too old to tell is an answer, and anything else is none.
fn unanswered(error: RDKafkaRespErr) -> Option<HashMap<String, Uuid>> {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE, RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION,
    };
    matches!(
        error,
        RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE | RD_KAFKA_RESP_ERR_UNSUPPORTED_VERSION
    )
    .then(HashMap::new)
}

/// # Safety
///
/// `description` is null or live.
unsafe fn described_id(
    description: *const sys::rd_kafka_TopicDescription_t,
) -> Option<(String, Uuid)> {
    if description.is_null() {
        return None;
    }
    // SAFETY: name and id belong to the description, which the caller keeps alive.
    unsafe {
        let name = sys::rd_kafka_TopicDescription_name(description);
        let id = sys::rd_kafka_TopicDescription_topic_id(description);
        if name.is_null() || id.is_null() {
            return None;
        }
        let high = sys::rd_kafka_Uuid_most_significant_bits(id) as u64;
        let low = sys::rd_kafka_Uuid_least_significant_bits(id) as u64;
        let id = Uuid::from_u64_pair(high, low);
        // All zero: an older broker, or a topic that it could not describe.
        (!id.is_nil()).then(|| (CStr::from_ptr(name).to_string_lossy().into_owned(), id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_as_bytes_whatever_it_is() {
        let mut list = TopicPartitionList::new();
        list.add_partition("t", 3).set_metadata("onceonly/1 a");
        list.add_partition("t", 4).set_metadata("xy");
        list.add_partition("t", 5);
        // SAFETY: the list is live and its second element's metadata has two bytes.
        unsafe {
            let element = (*list.ptr()).elems.add(1);
            (*element).metadata.cast::<u8>().write(0xff);
        }
        let metadata: Vec<_> = entries(&list).into_iter().map(|e| e.metadata).collect();
        assert_eq!(metadata, [&b"onceonly/1 a"[..], b"\xffy", b""]);
    }

    #[test]
    fn a_header_whose_name_is_no_text_is_read_all_the_same() {
        // SAFETY: the list is made, filled and freed here; names and values are copied.
        unsafe {
            let list = Owned::new(sys::rd_kafka_headers_new(2), sys::rd_kafka_headers_destroy);
            let list = list.expect("a list");
            for name in [&b"a\xff"[..], b"b"] {
                let (name, size) = (name.as_ptr().cast(), name.len() as isize);
                sys::rd_kafka_header_add(list.ptr, name, size, c"1".as_ptr().cast(), 1);
            }
            let read = raw_headers(list.ptr);
            let one = Some(&b"1"[..]);
            assert_eq!(read, [("a\u{fffd}".into(), one), ("b".into(), one)]);
        }
    }
}
