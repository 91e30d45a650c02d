"""The pipeline that benchmarks run services in."""

from pipecat.frames.frames import EndFrame, Frame, StartFrame, TextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipelines import running


class Keeping(FrameProcessor):
    """Keeps what comes, and passes it on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Frame] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.seen.append(frame)
        await self.push_frame(frame, direction)


async def test_they_have_begun_when_they_are_used_and_have_done_what_was_queued_at_the_end() -> (
    None
):
    steps = Keeping(), Keeping()
    async with running(steps, PipelineParams()) as worker:
        for step in steps:
            assert any(isinstance(frame, StartFrame) for frame in step.seen)
        await worker.queue_frame(TextFrame("last words"))
    for step in steps:
        kinds = [type(f) for f in step.seen if isinstance(f, TextFrame | EndFrame)]
        assert kinds == [TextFrame, EndFrame]
